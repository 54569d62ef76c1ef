"""The environment of a collective job, by the names of `paddle.distributed`."""

from __future__ import annotations

import os
from typing import Any

from openfleet.fleet import _job

from . import fleet
from .communication import check_group


def get_rank(group: Any = None) -> int:
    """Returns the rank of this worker; before `fleet.init` from the environment."""
    check_group(group)
    return int(os.environ.get("PADDLE_TRAINER_ID", 0)) if _job.joined() is None else fleet.worker_index()


def get_world_size(group: Any = None) -> int:
    """Returns the number of workers; before `fleet.init` from the environment."""
    check_group(group)
    return int(os.environ.get("PADDLE_TRAINERS_NUM", 1)) if _job.joined() is None else fleet.worker_num()


def init_parallel_env() -> ParallelEnv:
    """Joins a collective job: waits until all its workers call it. Alone, this process is the whole job."""
    if _job.joined() is None:
        fleet.init(is_collective=True)
    fleet.init_worker()
    return ParallelEnv()


def is_initialized() -> bool:
    """Returns whether this process has joined a job."""
    return _job.at_work() is not None


class ParallelEnv:
    """The rank of this process, the number of processes and their addresses, from the environment."""

    @property
    def rank(self) -> int:
        """The rank of this worker."""
        return get_rank()

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return get_world_size()

    @property
    def device_id(self) -> int:
        """0: the CPU is the only device."""
        return 0

    @property
    def device_type(self) -> str:
        """The CPU is the only device."""
        return "cpu"

    @property
    def current_endpoint(self) -> str:
        """The `host:port` of this worker."""
        return os.environ.get("PADDLE_CURRENT_ENDPOINT", "")

    @property
    def trainer_endpoints(self) -> list[str]:
        """The `host:port` of all workers, in rank order."""
        return os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")

    @property
    def nrings(self) -> int:
        """1: one ring connects all workers."""
        return 1

    local_rank, nranks, dev_id = rank, world_size, device_id
