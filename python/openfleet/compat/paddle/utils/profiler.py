"""`paddle.utils.profiler`: the same as `fluid.profiler`."""

from openfleet import compat

from ..fluid.profiler import *  # noqa: F403
from ..fluid.profiler import __all__

__getattr__ = compat.absent(__name__, __all__)
