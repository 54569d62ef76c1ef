"""What `import paddle` finds where this directory is on the path: it hands over to `openfleet.compat.paddle`."""

import importlib
import sys

from openfleet import compat

compat.install()
del sys.modules["paddle"]
importlib.import_module("paddle")
