"""`fluid.param_attr`."""

from openfleet import compat
from openfleet.compat.paddle._parameters import ParamAttr

__all__ = ["ParamAttr"]
__getattr__ = compat.absent(__name__, __all__)
