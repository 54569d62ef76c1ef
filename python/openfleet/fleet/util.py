"""Small things that scripts need."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _job


def get_file_shard(files: list[str]) -> list[str]:
    """This worker's part of a list of files: contiguous runs, of which the first have one more."""
    if not isinstance(files, list):
        raise TypeError(f"`get_file_shard` expects a list of files, got {type(files).__name__}")
    return _job.current().split_files(files)


def all_reduce(input: Any, mode: str = "sum", comm_world: str = "worker") -> Any:
    """The values of all workers made one, position by position: `sum`, `max` or `min`."""
    if comm_world != "worker":
        raise NotImplementedError(f"`comm_world` `{comm_world}`: workers reduce among each other")
    array = np.asarray(input)
    values = _job.current().all_reduce(mode, array.reshape(-1).astype(np.float64).tolist())
    return np.asarray(values).reshape(array.shape).astype(array.dtype)


def all_gather(input: Any, comm_world: str = "worker") -> list[Any]:
    """The number or array of every worker, in the order of ranks. Who has left counts as zeros."""
    if comm_world != "worker":
        raise NotImplementedError(f"`comm_world` `{comm_world}`: workers gather among each other")
    array, job = np.asarray(input), _job.current()
    everybody = np.zeros((job.worker_num(), *array.shape), array.dtype)
    everybody[job.worker_index()] = array
    gathered = all_reduce(everybody)
    return [one.item() if array.ndim == 0 else one for one in gathered]


def barrier(comm_world: str = "worker") -> None:
    """Waits until every worker has come here too."""
    if comm_world != "worker":
        raise NotImplementedError(f"`comm_world` `{comm_world}`: workers wait for each other")
    _job.current().barrier_worker()


def print_on_rank(message: str, rank_id: int) -> None:
    """Prints on the worker of this rank."""
    job = _job.current()
    if job.is_worker() and job.worker_index() == rank_id:
        print(message, flush=True)
