"""`fluid.layers.io`, inputs and readers: the same as `fluid.layers`."""

from openfleet import compat
from openfleet.compat.paddle.fluid.layers import *  # noqa: F403
from openfleet.compat.paddle.fluid.layers import __all__

__getattr__ = compat.absent(__name__, __all__)
