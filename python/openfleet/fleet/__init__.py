"""One script for every process of a job.

    init -> distributed_optimizer -+- server: init_server -> run_server
                                   +- worker: init_worker -> train -> stop_worker

The environment says which of the two this process is; without one the same script trains alone.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

from .. import _native
from ..dataset import MultiSlotDataGenerator, MultiSlotStringDataGenerator
from ..static import io as static_io
from ..static.executor import Executor
from ..static.optimizer import Optimizer
from ..static.scope import global_scope, scope_guard
from . import _ending, _job, metrics, util
from .optimizer import DistributedOptimizer
from .role import MPISymetricRoleMaker, PaddleCloudRoleMaker, Role, RoleMakerBase, UserDefinedRoleMaker
from .strategy import DistributedStrategy

__all__ = [
    "DistributedOptimizer",
    "DistributedStrategy",
    "MPISymetricRoleMaker",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    "PaddleCloudRoleMaker",
    "Role",
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
            hint = "call `minimize` of what `fleet.distributed_optimizer` gives first"
            raise _native.OrderError(f"`fleet.{name}` is read before `minimize`\n\nhint: {hint}")
        return program
    raise AttributeError(f"`fleet` has no `{name}`\n\nhint: {_native.nearest(name, __all__)}")


def init(
    role_maker: RoleMakerBase | None = None,
    is_collective: bool = False,
    strategy: DistributedStrategy | None = None,
    log_level: str = "INFO",
) -> None:
    """Finds out what this process is. One line on standard error says what, and how it knows."""
    if role_maker is not None and not isinstance(role_maker, RoleMakerBase):
        raise TypeError(f"`role_maker` expects a role maker, got {type(role_maker).__name__}")
    if strategy is not None and not isinstance(strategy, DistributedStrategy):
        raise TypeError(f"`strategy` expects a DistributedStrategy, got {type(strategy).__name__}")
    job = _native.Fleet(None if role_maker is None else role_maker._native(), _job.paddle_lines)
    is_collective = is_collective or getattr(role_maker, "_is_collective", False)
    if is_collective and job.server_num() > 0:
        raise ValueError(f"`is_collective=True`, but the job has servers: this is {job}")
    _job.begin(job)
    _job.strategy = copy.deepcopy(strategy)


def is_worker() -> bool:
    """Whether this process reads data and computes gradients."""
    return _job.current().is_worker()


def is_server() -> bool:
    """Whether this process keeps tables."""
    return _job.current().is_server()


def is_first_worker() -> bool:
    """Whether this is the worker that speaks for all of them."""
    return _job.current().is_first_worker()


def worker_index() -> int:
    """This worker's rank."""
    return _job.current().worker_index()


def worker_num() -> int:
    """How many workers there are."""
    return _job.current().worker_num()


def server_index() -> int:
    """This server's rank."""
    return _job.current().server_index()


def server_num() -> int:
    """How many servers there are; 0 where this process trains alone."""
    return _job.current().server_num()


def server_endpoints(to_string: bool = False) -> Any:
    """Where the servers are, in rank order."""
    endpoints = _job.current().server_endpoints()
    return ",".join(endpoints) if to_string else endpoints


def worker_endpoints(to_string: bool = False) -> Any:
    """Where the workers are, in rank order, where it was said."""
    endpoints = _job.current().worker_endpoints()
    return ",".join(endpoints) if to_string else endpoints


def distributed_optimizer(optimizer: Optimizer, strategy: DistributedStrategy | None = None) -> DistributedOptimizer:
    """Chooses how the job trains. One line says what the strategy means."""
    strategy = strategy or _job.strategy or DistributedStrategy()
    if not hasattr(strategy, "_options"):
        raise TypeError(f"`strategy` expects a DistributedStrategy, got {type(strategy).__name__}")
    _job.check_collective()
    return DistributedOptimizer(optimizer, strategy)


def init_server(dirname: str | os.PathLike[str] | None = None, var_names: Any = None, **kwargs: Any) -> None:
    """Prepares a server. `dirname` is a checkpoint to begin from, written by any number of servers.

    Its values are taken, and data is read from the start: yesterday's model learns from today's data. A server that the
    launcher starts again continues from the newest checkpoint of its own run instead, whatever `dirname` says.
    """
    _job.current().init_server(None if dirname is None else os.fspath(dirname))


def run_server() -> None:
    """Serves until all workers have left."""
    _job.current().run_server()


def init_worker(scopes: Any = None) -> None:
    """Waits for the servers and connects to them. The job trains in the scope that is current now; others are local."""
    _job.current().init_worker()
    _job.begin_work(global_scope())
    _ending.depart_at_exit(_depart)


def _depart() -> None:
    if _job.at_work() is not None:
        stop_worker()


def stop_worker() -> None:
    """This worker is done. When all workers are, the servers end.

    A script that ends with exit code 0 need not call it.
    """
    _job.current().stop_worker()
    _job.end_work()


def barrier_worker() -> None:
    """Waits until every worker that has not left has come here too."""
    _job.current().barrier_worker()


def all_reduce(input: Any, mode: str = "sum") -> Any:
    """The values of all workers made one, position by position."""
    return util.all_reduce(input, mode)


def split_files(files: list[str]) -> list[str]:
    """This worker's part of a list of files."""
    return util.get_file_shard(files)


def shrink(
    threshold: int | None = None, *, now: int | None = None, table: str | None = None, end_of_day: bool = False
) -> Any:
    """Removes rows that no longer earn their place: those not touched for `threshold` passes, and by their scores.

    Every call ends a pass; `now` counts in something else instead: a day, say. The first worker does it for the job and
    is told how many rows went; others get None.
    """
    shrunk = _job.current().shrink(table, now, threshold, end_of_day)
    return None if shrunk is None else sum(shrunk)


def _working(call: str) -> _native.Fleet:
    _job.current()
    job = _job.at_work()
    if job is None:
        hint = "call it on a worker, after `fleet.init_worker()` and before `fleet.stop_worker()`"
        raise _native.OrderError(
            f"`fleet.{call}` was called before `init_worker` or after `stop_worker`\n\nhint: {hint}"
        )
    return job


def table_rows() -> dict[str, int]:
    """How many rows each sparse table of the job has, on all servers together."""
    rows = _job.current().table_rows()
    if rows is not None:
        return rows
    scope = global_scope()
    alone = {name: scope.var(name).rows() for name in scope.names()}
    return {name: count for name, count in alone.items() if count is not None}


def save_persistables(
    executor: Any,
    dirname: str | os.PathLike[str],
    main_program: Any = None,
    *,
    mode: str = "whole",
    only: Sequence[Any] | None = None,
) -> None:
    """Saves every table of the job with its optimizer's state, from one moment, while training goes on.

    The first worker does it for the job; the others need not call it, and nothing happens if they do. The servers
    write: all of them have to see the directory or bucket. A checkpoint that stands there is replaced, and stays
    whole if this fails. `mode="delta"` writes only the rows that have changed since it; `only` names the tables and
    parameters that are wanted.
    """
    _working("save_persistables")
    with scope_guard(_job.scope()):
        static_io.save_persistables(executor, dirname, main_program or _job.main_program, mode=mode, only=only)


def save_one_table(table: Any, dirname: str | os.PathLike[str], *, mode: str = "whole") -> None:
    """Saves one table or parameter of the job, by its name, as `save_persistables` saves all of them."""
    _working("save_one_table")
    with scope_guard(_job.scope()):
        static_io.save(_job.main_program, dirname, mode=mode, only=[table])


def save(
    dirname: str | os.PathLike[str], feed: Sequence[Any] = (), fetch: Sequence[Any] = (), *, mode: str = "whole"
) -> None:
    """Saves what predicting `fetch` from `feed` needs; without them everything, to go on from."""
    executor = Executor()
    if fetch:
        names = [each if isinstance(each, str) else each.name for each in feed]
        save_inference_model(executor, dirname, names, fetch)
    else:
        save_persistables(executor, dirname, mode=mode)


def save_inference_model(
    executor: Any,
    dirname: str | os.PathLike[str],
    feeded_var_names: Sequence[str],
    target_vars: Sequence[Any],
    main_program: Any = None,
) -> None:
    """Saves what predicting `target_vars` needs. The first worker does it for the job; the servers write their rows."""
    _working("save_inference_model")
    with scope_guard(_job.scope()):
        static_io.save_inference_model(dirname, feeded_var_names, target_vars, executor, program=main_program)


def load_model(path: str | os.PathLike[str], *, partial: bool = False) -> None:
    """Takes every table of the job from a checkpoint, whatever number of servers wrote it.

    The first worker does it for the job, before training or between two passes.
    """
    _working("load_model")
    with scope_guard(_job.scope()):
        static_io.load(_job.main_program, path, partial=partial)
