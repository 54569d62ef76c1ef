"""Collective operations of `paddle.distributed`, on NumPy arrays.

PaddlePaddle changes a tensor in place. Here a tensor of a static program has no value of its own while the script runs,
so these functions take arrays, such as the values that `exe.run` returns, and change those in place. Gradients are
reduced by `fleet.distributed_optimizer`, not by the script.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from openfleet.fleet import _job
from openfleet.fleet import util as _util
from openfleet.static import Variable


class ReduceOp:
    """How arrays are combined."""

    SUM = 0
    MAX = 1
    MIN = 2
    PROD = 3
    AVG = 4


_MODES = {ReduceOp.SUM: "sum", ReduceOp.MAX: "max", ReduceOp.MIN: "min", ReduceOp.AVG: "mean"}


class _Done:
    """A task that is complete, for scripts that wait for it."""

    def wait(self) -> bool:
        """Returns True."""
        return True

    def is_completed(self) -> bool:
        """Returns True."""
        return True


def check_group(group: Any) -> None:
    """Raises NotImplementedError for a group of some workers."""
    if group is not None:
        raise NotImplementedError("`group` of `paddle.distributed`: there is one group, that of all workers")


def _array(call: str, tensor: Any) -> np.ndarray[Any, Any]:
    if isinstance(tensor, Variable):
        raise NotImplementedError(
            f"`paddle.distributed.{call}` of a variable: a variable has no value while the program is built\n\n"
            "hint: fetch it with `exe.run(fetch_list=[...])` and pass the array; gradients are reduced by "
            "`fleet.distributed_optimizer`"
        )
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"`paddle.distributed.{call}` expects a NumPy array, got {type(tensor).__name__}")
    return tensor


def _check_op(call: str, op: int) -> str:
    if op not in _MODES:
        raise NotImplementedError(f"`op` of `paddle.distributed.{call}`: use SUM, MAX, MIN or AVG of `ReduceOp`")
    return _MODES[op]


def all_reduce(tensor: Any, op: int = ReduceOp.SUM, group: Any = None, sync_op: bool = True) -> _Done:
    """Replaces an array by the combination of the arrays of all workers."""
    check_group(group)
    array = _array("all_reduce", tensor)
    array[...] = _util.all_reduce(array, _check_op("all_reduce", op))
    return _Done()


def reduce(tensor: Any, dst: int, op: int = ReduceOp.SUM, group: Any = None, sync_op: bool = True) -> _Done:
    """Replaces the array of worker `dst` by the combination of the arrays of all workers."""
    check_group(group)
    array = _array("reduce", tensor)
    reduced = _util.all_reduce(array, _check_op("reduce", op))
    if _job.current().worker_index() == dst:
        array[...] = reduced
    return _Done()


def broadcast(tensor: Any, src: int, group: Any = None, sync_op: bool = True) -> _Done:
    """Replaces an array by that of worker `src`."""
    check_group(group)
    array = _array("broadcast", tensor)
    array[...] = _util.broadcast(array, src)
    return _Done()


def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, sync_op: bool = True) -> _Done:
    """Appends the arrays of all workers to a list, in the order of their ranks."""
    check_group(group)
    tensor_list.extend(np.asarray(one) for one in _util.all_gather(_array("all_gather", tensor)))
    return _Done()


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Appends the objects of all workers of a collective job to a list, in the order of their ranks."""
    check_group(group)
    # The workers of a job trust each other: they proved that they know its secret.
    object_list.extend(pickle.loads(one) for one in _job.current().all_gather(pickle.dumps(obj)) if one)


def barrier(group: Any = None) -> None:
    """Waits until every worker calls it too."""
    check_group(group)
    _util.barrier()
