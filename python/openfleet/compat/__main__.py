"""`python -m openfleet.compat script.py arguments...`"""

import os
import runpy
import sys

from . import for_children, install

if len(sys.argv) < 2:
    sys.exit("usage: python -m openfleet.compat script.py [arguments...]")
install()
for_children()
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
