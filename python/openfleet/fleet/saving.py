"""Checkpoints and inference models of a job, and the rows of its tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .. import _native
from ..static import io as static_io
from ..static.executor import Executor
from ..static.scope import global_scope, scope_guard
from . import _job


def save_persistables(
    executor: Any,
    dirname: str | os.PathLike[str],
    main_program: Any = None,
    *,
    mode: str = "whole",
    only: Sequence[Any] | None = None,
) -> None:
    """Saves a checkpoint of the job: a snapshot of every table with its optimizer's state, while training continues.

    Only the first worker's call has an effect. The servers write, so all of them need access to the directory or
    bucket.

    Args:
        executor: The executor that trains, or the PyTorch model.
        dirname: A directory, or `s3://bucket/prefix`. An existing checkpoint is replaced once the new one is complete.
        main_program: The program; that of `minimize` by default.
        mode: `whole`, or `delta` to write only the rows that changed since the existing checkpoint.
        only: The tables and parameters to save; all by default.

    Raises:
        openfleet.OrderError: This process is not between `init_worker` and `stop_worker`.
        OSError: The checkpoint cannot be written. The existing one stays as it was.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> click = static.nn.fc(static.nn.sparse_embedding(user, size=[100, 4]), size=1)
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(static.nn.mean(click))
    >>> _ = exe.run(static.default_startup_program())
    >>> fleet.init_worker()
    >>> _ = exe.run(feed={"user": [[1], [2, 3]]})
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> fleet.save_persistables(exe, path)
    >>> sorted(os.listdir(path))[-1]
    'manifest.json'
    """
    _require_working("save_persistables")
    if not isinstance(executor, Executor):
        executor = Executor()
    _job.tell_reading()
    with scope_guard(_job.scope()):
        static_io.save_persistables(executor, dirname, main_program or _job.main_program, mode=mode, only=only)
    _job.checkpoint = os.fspath(dirname)


def save_one_table(table: Any, dirname: str | os.PathLike[str], *, mode: str = "whole") -> None:
    """Saves one table or parameter of the job by its name, as `save_persistables` saves all of them.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> click = static.nn.fc(static.nn.sparse_embedding(user, size=[100, 4]), size=1)
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(static.nn.mean(click))
    >>> _ = exe.run(static.default_startup_program())
    >>> fleet.init_worker()
    >>> _ = exe.run(feed={"user": [[1], [2, 3]]})
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> fleet.save_one_table(next(iter(fleet.table_rows())), path)
    """
    _require_working("save_one_table")
    with scope_guard(_job.scope()):
        static_io.save(_job.program(), dirname, mode=mode, only=[table])


def save(
    dirname: str | os.PathLike[str], feed: Sequence[Any] = (), fetch: Sequence[Any] = (), *, mode: str = "whole"
) -> None:
    """Saves an inference model that predicts `fetch` from `feed`; without `fetch` a checkpoint to resume from.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> click = static.nn.fc(static.nn.sparse_embedding(user, size=[100, 4]), size=1)
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(static.nn.mean(click))
    >>> _ = exe.run(static.default_startup_program())
    >>> fleet.init_worker()
    >>> _ = exe.run(feed={"user": [[1], [2, 3]]})
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> fleet.save(path, feed=[user], fetch=[click])
    """
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
    """Saves an inference model that predicts `target_vars` from the data named `feeded_var_names`.

    Only the first worker's call has an effect; the servers write their rows.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> click = static.nn.fc(static.nn.sparse_embedding(user, size=[100, 4]), size=1)
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(static.nn.mean(click))
    >>> _ = exe.run(static.default_startup_program())
    >>> fleet.init_worker()
    >>> _ = exe.run(feed={"user": [[1], [2, 3]]})
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> fleet.save_inference_model(exe, path, ["user"], [click])
    """
    _require_working("save_inference_model")
    with scope_guard(_job.scope()):
        static_io.save_inference_model(dirname, feeded_var_names, target_vars, executor, program=main_program)


def load_model(path: str | os.PathLike[str], *, partial: bool = False) -> None:
    """Loads every table of the job from a checkpoint, which any number of servers may have written.

    Call it on every worker, before training or between two passes; with servers only the first worker's call has an
    effect. `partial=True` skips values that are missing or do not fit.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> click = static.nn.fc(static.nn.sparse_embedding(user, size=[100, 4]), size=1)
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(static.nn.mean(click))
    >>> _ = exe.run(static.default_startup_program())
    >>> fleet.init_worker()
    >>> _ = exe.run(feed={"user": [[1], [2, 3]]})
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> fleet.save_persistables(exe, path)
    >>> fleet.load_model(path)
    """
    job = _require_working("load_model")
    # Every rank of a collective job has all tables.
    if job.is_first_worker() or job.is_collective():
        with scope_guard(_job.scope()):
            static_io.load(_job.program(), path, partial=partial)
    _job.checkpoint = os.fspath(path)
    _job.tell_new_values()


def shrink(
    threshold: int | None = None, *, now: int | None = None, table: str | None = None, end_of_day: bool = False
) -> Any:
    """Removes stale rows from sparse tables: those not updated for `threshold` passes, and those with low scores.

    Only the first worker's call has an effect.

    Args:
        threshold: The age in passes above which a row is removed.
        now: The current time in a unit of your choice, such as days; by default every call ends a pass.
        table: The name of one table; all tables by default.
        end_of_day: Whether a day ends for the counts of shows and clicks.

    Returns:
        How many rows were removed, on the first worker; None on the others.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> click = static.nn.fc(static.nn.sparse_embedding(user, size=[100, 4]), size=1)
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(static.nn.mean(click))
    >>> _ = exe.run(static.default_startup_program())
    >>> fleet.init_worker()
    >>> _ = exe.run(feed={"user": [[1], [2, 3]]})
    >>> fleet.shrink(threshold=3)
    0
    """
    shrunk = _job.current().shrink(table, now, threshold, end_of_day)
    return None if shrunk is None else sum(shrunk)


def table_rows() -> dict[str, int]:
    """Returns the number of rows of each sparse table, on all servers together, by name.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> click = static.nn.fc(static.nn.sparse_embedding(user, size=[100, 4]), size=1)
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(static.nn.mean(click))
    >>> _ = exe.run(static.default_startup_program())
    >>> fleet.init_worker()
    >>> _ = exe.run(feed={"user": [[1], [2, 3]]})
    >>> list(fleet.table_rows().values())
    [3]
    """
    rows = _job.current().table_rows()
    if rows is not None:
        return rows
    scope = global_scope()
    alone = {name: scope.var(name).rows() for name in scope.names()}
    return {name: count for name, count in alone.items() if count is not None}


def _require_working(call: str) -> _native.Fleet:
    _job.current()
    job = _job.at_work()
    if job is None:
        hint = "call it on a worker, after `fleet.init_worker()` and before `fleet.stop_worker()`"
        raise _native.OrderError(
            f"`fleet.{call}` was called before `init_worker` or after `stop_worker`\n\nhint: {hint}"
        )
    return job
