"""`paddle.base.framework`: the same as `fluid.framework`."""

from openfleet import compat

from ..fluid.framework import *  # noqa: F403
from ..fluid.framework import __all__

__getattr__ = compat.absent(__name__, __all__)
