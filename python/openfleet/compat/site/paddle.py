"""Replaces itself by `openfleet.compat.paddle`. `import paddle` finds this file if its directory is on the path."""

import importlib
import sys

from openfleet import compat

compat.install()
del sys.modules["paddle"]
importlib.import_module("paddle")
