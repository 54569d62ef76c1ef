"""`paddle.framework`."""

from openfleet import compat
from openfleet.static import CPUPlace, create_parameter

from . import core
from ._devices import CUDAPlace
from ._parameters import ParamAttr
from .fluid.framework import *  # noqa: F403
from .fluid.framework import __all__ as _names


def in_dynamic_mode() -> bool:
    """Returns False: programs are static here."""
    return False


__all__ = [*_names, "CPUPlace", "CUDAPlace", "ParamAttr", "core", "create_parameter", "in_dynamic_mode"]
__getattr__ = compat.absent(__name__, __all__)
