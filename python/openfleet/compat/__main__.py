"""`python -m openfleet.compat script.py arguments...`, or `-m module` in place of the script."""

import os
import runpy
import sys

from . import for_children, install

words = sys.argv[1:]
is_module = words[:1] == ["-m"]
if len(words) < 1 + is_module:
    sys.exit("usage: python -m openfleet.compat script.py [arguments...]")
install()
for_children()
sys.argv = words[is_module:]
if is_module:
    sys.path[0] = os.getcwd()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
