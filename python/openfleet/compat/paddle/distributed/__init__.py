"""`paddle.distributed`."""

from openfleet import compat
from openfleet.static import CountFilterEntry, ProbabilityEntry, ShowClickEntry

from .._datasets import InMemoryDataset, QueueDataset
from . import fleet
from .communication import ReduceOp, all_gather, all_gather_object, all_reduce, barrier, broadcast, reduce
from .parallel import ParallelEnv, get_rank, get_world_size, init_parallel_env, is_initialized

__all__ = [
    "CountFilterEntry",
    "InMemoryDataset",
    "ParallelEnv",
    "ProbabilityEntry",
    "QueueDataset",
    "ReduceOp",
    "ShowClickEntry",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "fleet",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "is_initialized",
    "reduce",
]
__getattr__ = compat.absent(__name__, __all__)
