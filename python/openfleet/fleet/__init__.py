"""Runs one script in every process of a job.

    init -> distributed_optimizer -+- server: init_server -> run_server
                                   +- worker: init_worker -> train -> stop_worker

Environment variables, which `fleetrun` sets, say whether this process is a server or a worker. Without them the same
script trains alone, in one process:

>>> from openfleet import fleet
>>> fleet.init()
>>> fleet.is_first_worker(), fleet.worker_num(), fleet.server_num()
(True, 1, 0)
>>> x, label = static.data("x", [None, 2]), static.data("label", [None, 1])
>>> loss = static.nn.mean(static.nn.square_error_cost(static.nn.fc(x, 1), label))
>>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(loss)
"""

from __future__ import annotations

import copy
import os
from typing import Any

from .. import _native
from .._deprecated import IGNORED, accepts_deprecated
from ..dataset import MultiSlotDataGenerator, MultiSlotStringDataGenerator
from ..static.optimizer import Optimizer
from ..static.scope import global_scope
from . import _ending, _job, metrics, util
from .optimizer import DistributedOptimizer
from .role import (
    MPISymetricRoleMaker,
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from .saving import (
    load_model,
    save,
    save_inference_model,
    save_one_table,
    save_persistables,
    shrink,
    table_rows,
)
from .strategy import DistributedStrategy

__all__ = [
    "DistributedOptimizer",
    "DistributedStrategy",
    "MPISymetricRoleMaker",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    "PaddleCloudRoleMaker",
    "Role",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
    "all_reduce",
    "barrier_worker",
    "distributed_optimizer",
    "init",
    "init_server",
    "init_worker",
    "is_first_worker",
    "is_server",
    "is_worker",
    "load_model",
    "metrics",
    "run_server",
    "save",
    "save_inference_model",
    "save_one_table",
    "save_persistables",
    "server_endpoints",
    "server_index",
    "server_num",
    "shrink",
    "split_files",
    "stop_worker",
    "table_rows",
    "util",
    "worker_endpoints",
    "worker_index",
    "worker_num",
]


def __getattr__(name: str) -> Any:
    if name in ("main_program", "startup_program"):
        program = getattr(_job, name)
        if program is None:
            hint = "call `fleet.distributed_optimizer(...).minimize(loss)` first"
            raise _native.OrderError(f"`fleet.{name}` is read before `minimize`\n\nhint: {hint}")
        return program
    raise AttributeError(f"`fleet` has no `{name}`\n\nhint: {_native.nearest(name, __all__)}")


@accepts_deprecated(log_level=IGNORED)
def init(
    role_maker: RoleMakerBase | None = None, is_collective: bool = False, strategy: DistributedStrategy | None = None
) -> None:
    """Determines the role of this process. One line on standard error says which role, and from which source.

    Call it first, once per process.

    Args:
        role_maker: Where the role comes from; the environment by default.
        is_collective: Whether the job has workers only, which train with each other. Raises where it has servers.
        strategy: How the job trains, where `distributed_optimizer` is not given one.

    Raises:
        TypeError: An argument has another type.
        ValueError: `is_collective` is True and the job has servers.
        openfleet.RoleError: The environment is incomplete or contradicts itself.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.worker_num(), fleet.server_num()
    (1, 0)
    """
    if role_maker is not None and not isinstance(role_maker, RoleMakerBase):
        raise TypeError(f"`role_maker` expects a role maker, got {type(role_maker).__name__}")
    if strategy is not None and not isinstance(strategy, DistributedStrategy):
        raise TypeError(f"`strategy` expects a DistributedStrategy, got {type(strategy).__name__}")
    is_collective = is_collective or getattr(role_maker, "_is_collective", False)
    native = None if role_maker is None else role_maker._native()
    job = _native.Fleet(native, _job.paddle_lines, is_collective)
    if is_collective and job.server_num() > 0:
        raise ValueError(f"`is_collective=True`, but the job has servers: this is {job}")
    _job.begin(job)
    _job.strategy = copy.deepcopy(strategy)
    if job.is_collective():
        # A rank that has used the group in any way has to depart from it.
        _ending.depart_at_exit(_depart)


def is_worker() -> bool:
    """Returns whether this process is a worker, which reads data and computes gradients. True in a process alone.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.is_worker()
    True
    """
    return _job.current().is_worker()


def is_server() -> bool:
    """Returns whether this process is a server, which keeps tables.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.is_server()
    False
    """
    return _job.current().is_server()


def is_first_worker() -> bool:
    """Returns whether this is worker 0, which saves, loads and shrinks for the whole job.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.is_first_worker()
    True
    """
    return _job.current().is_first_worker()


def worker_index() -> int:
    """Returns the rank of this worker, from 0.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.worker_index()
    0
    """
    return _job.current().worker_index()


def worker_num() -> int:
    """Returns the number of workers in the job.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.worker_num()
    1
    """
    return _job.current().worker_num()


def server_index() -> int:
    """Returns the rank of this server, from 0.

    >>> from openfleet import fleet
    >>> fleet.init(fleet.UserDefinedRoleMaker(1, fleet.Role.SERVER, 2, ["127.0.0.1:6001", "127.0.0.1:6002"]))
    >>> fleet.server_index()
    1
    """
    return _job.current().server_index()


def server_num() -> int:
    """Returns the number of servers in the job; 0 where this process trains alone.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.server_num()
    0
    """
    return _job.current().server_num()


def server_endpoints(to_string: bool = False) -> Any:
    """Returns the `host:port` of every server in rank order, as a list or as one string with commas.

    >>> from openfleet import fleet
    >>> fleet.init(fleet.UserDefinedRoleMaker(0, fleet.Role.WORKER, 2, ["127.0.0.1:6001", "127.0.0.1:6002"]))
    >>> fleet.server_endpoints(to_string=True)
    '127.0.0.1:6001,127.0.0.1:6002'
    """
    endpoints = _job.current().server_endpoints()
    return ",".join(endpoints) if to_string else endpoints


def worker_endpoints(to_string: bool = False) -> Any:
    """Returns the `host:port` of every worker in rank order, where the environment or the role maker lists them.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.worker_endpoints()
    []
    """
    endpoints = _job.current().worker_endpoints()
    return ",".join(endpoints) if to_string else endpoints


def distributed_optimizer(
    optimizer: Optimizer | Any,
    strategy: DistributedStrategy | None = None,
    model: Any = None,
    *,
    name: str = "",
    dense: str = "tables",
) -> Any:
    """Returns an optimizer that trains in the mode of a strategy. One line on standard error says which mode.

    Args:
        optimizer: One of `static.optimizer`, or of `torch.optim` for a PyTorch model.
        strategy: The mode and its settings; by default that of `init`, or async.
        model: The PyTorch model, whose embeddings are those of `openfleet.torch`.
        name: A prefix for the names of its tables and parameters, if there are several PyTorch models.
        dense: Who trains the parameters of a PyTorch model: `tables`, by the same rule on the servers, or `local`,
            PyTorch's optimizer in each worker, whose steps the job exchanges. Rows are always trained in the tables.

    Returns:
        A `DistributedOptimizer`; for a PyTorch model that of `openfleet.torch`, a `torch.optim.Optimizer`.

    Raises:
        TypeError: An argument has another type.
        ValueError: Settings of the strategy contradict each other, or the model has no embedding of OpenFleet.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> strategy = fleet.DistributedStrategy()
    >>> strategy.a_sync = False
    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> _ = fleet.distributed_optimizer(static.optimizer.Adam(0.001), strategy).minimize(loss)
    """
    strategy = strategy or _job.strategy or DistributedStrategy()
    if not hasattr(strategy, "_options"):
        raise TypeError(f"`strategy` expects a DistributedStrategy, got {type(strategy).__name__}")
    if model is None:
        return DistributedOptimizer(optimizer, strategy)
    from .. import torch

    return torch.DistributedOptimizer(optimizer, strategy, model, name, dense)


@accepts_deprecated("dirname var_names", var_names=IGNORED, kwargs=IGNORED)
def init_server(dirname: str | os.PathLike[str] | None = None) -> None:
    """Prepares a server.

    `dirname` is a checkpoint to start from, written by any number of servers. Its values are loaded and data is read
    from the start, so that yesterday's model trains on today's data. A server that the launcher restarts resumes from
    the newest checkpoint of its own run instead, whatever `dirname` is.

    Raises:
        FileNotFoundError: There is no checkpoint.
        openfleet.RoleError: This process is a worker.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> if fleet.is_server():
    ...     fleet.init_server()
    ...     fleet.run_server()
    """
    _job.current().init_server(None if dirname is None else os.fspath(dirname))


def run_server() -> None:
    """Serves the tables until all workers have stopped.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> if fleet.is_server():
    ...     fleet.init_server()
    ...     fleet.run_server()
    """
    _job.current().run_server()


@accepts_deprecated(scopes=IGNORED)
def init_worker() -> None:
    """Waits for the servers, or for the other ranks of a collective job, and connects to them.

    Call it after `minimize` and the startup program. The job trains in the scope that is current now; any other scope
    is local to this process.

    Raises:
        openfleet.RankError: The ranks of a job without servers do not meet in time.
        openfleet.ServerError: The servers do not answer in time.
        openfleet.OrderError: It was called before `init` or `minimize`.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> click = static.nn.fc(static.nn.sparse_embedding(user, size=[100, 4]), size=1)
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(static.nn.mean(click))
    >>> _ = exe.run(static.default_startup_program())
    >>> fleet.init_worker()
    >>> _ = exe.run(feed={"user": [[1], [2, 3]]})
    """
    _job.tell_reading()
    _job.current().init_worker()
    _job.begin_work(global_scope())
    _ending.depart_at_exit(_depart)
    _job.tell_new_values()


def _depart() -> None:
    job = _job.joined()
    if _job.at_work() is not None or (job is not None and job.is_collective() and not _job.is_over()):
        stop_worker()


def stop_worker() -> None:
    """Leaves the job. Servers shut down once all workers have left; a rank of a collective job waits for the others.

    A script that ends with exit code 0 need not call it.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> click = static.nn.fc(static.nn.sparse_embedding(user, size=[100, 4]), size=1)
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(static.nn.mean(click))
    >>> _ = exe.run(static.default_startup_program())
    >>> fleet.init_worker()
    >>> _ = exe.run(feed={"user": [[1], [2, 3]]})
    >>> fleet.stop_worker()
    """
    job = _job.current()
    if job.is_collective() and _job.main_program is not None and not _job.is_over():
        _take_part_without_data()
    job.stop_worker()
    _job.end_work()


def _take_part_without_data() -> None:
    """Joins the job on a rank whose script has trained nothing: the other ranks wait for it, and may have data."""
    from ..static.executor import Executor

    if _job.at_work() is None:
        init_worker()
    # The job takes part with the tables of the scopes that have an executor.
    Executor()._for_scope(_job.scope())


def barrier_worker() -> None:
    """Waits until every worker that has not left the job calls it too.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.barrier_worker()
    """
    _job.current().barrier_worker()


def all_reduce(input: Any, mode: str = "sum") -> Any:
    """Combines the arrays of all workers element by element: `sum`, `mean`, `max` or `min`. Every worker calls it.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.all_reduce(np.array([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    return util.all_reduce(input, mode)


def split_files(files: list[str]) -> list[str]:
    """Returns this worker's part of a list of files: contiguous runs, whose sizes differ by one at most.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> fleet.split_files(["a", "b"])
    ['a', 'b']
    """
    return util.get_file_shard(files)
