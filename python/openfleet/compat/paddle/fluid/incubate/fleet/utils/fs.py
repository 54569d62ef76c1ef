"""`fluid.incubate.fleet.utils.fs`: the same as `fleet.utils.fs`."""

from openfleet import compat
from openfleet.compat.paddle.distributed.fleet.utils.fs import *  # noqa: F403
from openfleet.compat.paddle.distributed.fleet.utils.fs import __all__

__getattr__ = compat.absent(__name__, __all__)
