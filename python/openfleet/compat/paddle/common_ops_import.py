"""`paddle.common_ops_import`: names that scripts reach through it."""

from openfleet import compat
from openfleet.static import Variable, default_main_program, default_startup_program

from . import core
from .fluid.framework import in_dygraph_mode

__all__ = ["Variable", "core", "default_main_program", "default_startup_program", "in_dygraph_mode"]
__getattr__ = compat.absent(__name__, __all__)
