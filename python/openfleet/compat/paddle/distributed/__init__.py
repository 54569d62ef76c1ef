"""`paddle.distributed`."""

from __future__ import annotations

import os
from typing import Any

from openfleet import compat
from openfleet.fleet import _job
from openfleet.static import CountFilterEntry, ProbabilityEntry, ShowClickEntry

from .._datasets import InMemoryDataset, QueueDataset
from . import fleet


def get_rank(group: Any = None) -> int:
    """Returns the rank of this worker; before `fleet.init` from the environment."""
    _whole(group)
    return int(os.environ.get("PADDLE_TRAINER_ID", 0)) if _job._fleet is None else fleet.worker_index()


def get_world_size(group: Any = None) -> int:
    """Returns the number of workers; before `fleet.init` from the environment."""
    _whole(group)
    return int(os.environ.get("PADDLE_TRAINERS_NUM", 1)) if _job._fleet is None else fleet.worker_num()


def _whole(group: Any) -> None:
    if group is not None:
        raise NotImplementedError("`group` of `paddle.distributed`: there is one group, that of all workers")


def init_parallel_env() -> None:
    """Raises NotImplementedError: collective training is not available yet."""
    raise NotImplementedError("`paddle.distributed.init_parallel_env`: collective training is not available yet")


__all__ = [
    "CountFilterEntry",
    "InMemoryDataset",
    "ProbabilityEntry",
    "QueueDataset",
    "ShowClickEntry",
    "fleet",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
]
__getattr__ = compat.absent(__name__, __all__)
