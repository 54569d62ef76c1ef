"""`paddle.base.core`: the same as `fluid.core`."""

from openfleet import compat

from ..fluid.core import *  # noqa: F403
from ..fluid.core import __all__

__getattr__ = compat.absent(__name__, __all__)
