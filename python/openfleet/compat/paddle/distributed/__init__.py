"""`paddle.distributed`."""

import sys

import openfleet.fleet as fleet
from openfleet import compat
from openfleet.dataset import InMemoryDataset, QueueDataset

sys.modules[f"{__name__}.fleet"] = fleet


def get_rank() -> int:
    """This worker's rank."""
    return fleet.worker_index()


def get_world_size() -> int:
    """How many workers there are."""
    return fleet.worker_num()


__all__ = ["InMemoryDataset", "QueueDataset", "fleet", "get_rank", "get_world_size"]
__getattr__ = compat.absent(__name__, __all__)
