"""`paddle.distributed.fleet.base`."""

from openfleet import compat

from . import distributed_strategy, role_maker

__all__ = ["distributed_strategy", "role_maker"]
__getattr__ = compat.absent(__name__, __all__)
