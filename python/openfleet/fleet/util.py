"""Collectives among workers, and the files of a worker."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._deprecated import Deprecated, accepts_deprecated
from . import _job


def check_comm_world(comm_world: str) -> None:
    """Raises NotImplementedError for PaddlePaddle's groups that include servers."""
    if comm_world != "worker":
        raise NotImplementedError(f"`comm_world` `{comm_world}`: collectives are among workers")


def _comm_world(value: str) -> dict[str, Any]:
    check_comm_world(value)
    return {}


_COMM_WORLD = Deprecated("leave it out, collectives are among workers", _comm_world)


def get_file_shard(files: list[str]) -> list[str]:
    """Returns this worker's part of a list of files: contiguous runs, the first of them one file longer.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.util.get_file_shard(["a", "b"])
    ['a', 'b']
    """
    if not isinstance(files, list):
        raise TypeError(f"`get_file_shard` expects a list of files, got {type(files).__name__}")
    return _job.current().split_files(files)


@accepts_deprecated(comm_world=_COMM_WORLD)
def all_reduce(input: Any, mode: str = "sum") -> Any:
    """Combines the arrays of all workers element by element: `sum`, `mean`, `max` or `min`. Every worker calls it.

    The result has the type of the input. Servers compute with 64-bit floats; a collective job computes with the type of
    the input.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.util.all_reduce(2, mode="max").item()
    2
    """
    array = np.asarray(input)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"`all_reduce` expects numbers, got an array of {array.dtype}")
    wide = (
        array.dtype if array.dtype in (np.float32, np.float64) else np.float64 if array.dtype.kind == "f" else np.int64
    )
    reduced = _job.current().all_reduce(mode, np.ascontiguousarray(array, wide).reshape(-1))
    return reduced.reshape(array.shape).astype(array.dtype)


@accepts_deprecated(comm_world=_COMM_WORLD)
def all_gather(input: Any) -> list[Any]:
    """Returns the number or array of every worker in rank order; zeros for a worker that has left the job.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.util.all_gather(7)
    [7]
    """
    array, job = np.asarray(input), _job.current()
    everybody = np.zeros((job.worker_num(), *array.shape), array.dtype)
    everybody[job.worker_index()] = array
    gathered = all_reduce(everybody)
    return [one.item() if array.ndim == 0 else one for one in gathered]


def broadcast(input: Any, root: int = 0) -> Any:
    """Returns the array of worker `root` on every worker. All workers pass arrays of one shape and type.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.util.broadcast(np.array([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    job = _job.current()
    if not 0 <= root < job.worker_num():
        raise ValueError(f"`root` expects a rank below {job.worker_num()}, got {root}")
    array = np.ascontiguousarray(input)
    if job.is_collective():
        return np.frombuffer(job.broadcast(root, array.tobytes()), array.dtype).reshape(array.shape).copy()
    return all_reduce(array if job.worker_index() == root else np.zeros_like(array))


@accepts_deprecated(comm_world=_COMM_WORLD)
def barrier() -> None:
    """Waits until every worker calls it too.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.util.barrier()
    """
    _job.current().barrier_worker()


def print_on_rank(message: str, rank_id: int) -> None:
    """Prints a message on the worker of this rank only.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.util.print_on_rank("done", 0)
    done
    """
    job = _job.current()
    if job.is_worker() and job.worker_index() == rank_id:
        print(message, flush=True)
