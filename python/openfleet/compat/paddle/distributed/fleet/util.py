"""`fleet.util`: collectives with PaddlePaddle's argument `comm_world`."""

from openfleet import compat
from openfleet.compat._arguments import with_arguments as _with_arguments
from openfleet.fleet import util as _util
from openfleet.fleet.util import get_file_shard, print_on_rank

_COMM_WORLD = ("worker", _util.check_comm_world)
all_gather = _with_arguments(_util.all_gather, comm_world=_COMM_WORLD)
all_reduce = _with_arguments(_util.all_reduce, comm_world=_COMM_WORLD)
barrier = _with_arguments(_util.barrier, comm_world=_COMM_WORLD)
__all__ = ["all_gather", "all_reduce", "barrier", "get_file_shard", "print_on_rank"]
__getattr__ = compat.absent(__name__, __all__)
