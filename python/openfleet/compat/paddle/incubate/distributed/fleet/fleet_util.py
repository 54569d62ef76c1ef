"""`FleetUtil` under the path of PaddlePaddle 2.x."""

from openfleet import compat
from openfleet.compat.paddle.fluid.incubate.fleet.utils.fleet_util import FleetUtil

__all__ = ["FleetUtil"]
__getattr__ = compat.absent(__name__, __all__)
