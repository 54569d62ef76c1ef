"""Runs programs: one batch at a time, or a whole dataset on several threads.

On a worker of a job, after `fleet.init_worker()`, executors train the tables of the job's servers in the scope that was
current at that call. Any other scope is local to this process: loading a model into it does not change the job.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _native
from .._deprecated import IGNORED, Deprecated, accepts_deprecated
from .feed import columns
from .program import Program, Variable, default_main_program
from .scope import Scope, global_scope


class CPUPlace:
    """The CPU, the only device that programs run on.

    >>> static.CPUPlace()
    CPUPlace()
    """

    def __repr__(self) -> str:
        return "CPUPlace()"


class FetchHandler:
    """Calls `handler` with fetched values every `period_secs` seconds of a pass. Subclasses override `handler`.

    >>> handler = static.FetchHandler({"loss": static.nn.literal([0.5])}, period_secs=10)
    >>> handler.handler({"loss": 0.25})
    loss: 0.25
    """

    def __init__(self, var_dict: Mapping[str, Variable], period_secs: int = 60) -> None:
        self.var_dict, self.period_secs = dict(var_dict), period_secs

    def handler(self, res_dict: Mapping[str, Any]) -> None:
        """Receives the values by name. By default it prints them."""
        for name, value in res_dict.items():
            print(f"{name}: {_text(value)}")


def _batch_threads(threads: int | None) -> int | None:
    """Returns the threads of `Executor.run`; None for the default."""
    if threads is not None:
        if not isinstance(threads, int) or threads < 1:
            raise ValueError(f"`threads` of Executor expects a number of at least 1, got {threads!r}")
        return threads
    # Schedulers and users set this for every library that divides products among threads; a list is for nested teams.
    limit = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, int(limit)) if limit.isdecimal() else None


class Executor:
    """Runs programs on the values of a scope.

    Args:
        threads: How many threads share the layers of a batch in `run`; the result is the same to the bit. By default
            the value of `OMP_NUM_THREADS`, else all cores in a process that trains alone and 1 in a job, whose
            processes may share a machine. Passes over datasets have threads of their own.

    Raises:
        ValueError: `threads` is not a number of at least 1.

    >>> x = static.data("x", [None, 2])
    >>> exe = static.Executor()
    >>> exe.run(feed={"x": np.ones((3, 2))}, fetch_list=[static.nn.sum(x)])[0].tolist()
    [6.0]
    """

    @accepts_deprecated(place=IGNORED)
    def __init__(self, *, threads: int | None = None) -> None:
        self.place: Any = CPUPlace()
        self._threads = _batch_threads(threads)
        self._executors: dict[tuple[int, int], tuple[_native.Executor, Any, Any]] = {}

    def _for_scope(self, scope: Scope | None, gives_values: bool = False) -> _native.Executor:
        """Returns the native executor of a scope. `gives_values`: the caller sets all parameters of the scope now."""
        from ..fleet import _job

        scope = global_scope() if scope is None else scope
        _job.join_if_collective(scope)
        job = _job.of_scope(scope)
        if gives_values:
            scope._trained_elsewhere = False
        elif job is not None and job.server_num() > 0:
            scope._trained_elsewhere = True
        elif scope._trained_elsewhere:
            raise _native.OrderError(
                "the parameters of this scope were on the job's servers, which this worker has left\n\n"
                "hint: evaluate before `fleet.stop_worker`, load a checkpoint, or run the startup program to start over"
            )
        key = id(scope), id(job)
        if key not in self._executors:
            native = _native.Executor(scope._native) if job is None else job.executor(scope._native)
            if self._threads is not None:
                native.set_batch_threads(self._threads)
            # Keeps the scope and the job alive, so that Python does not reuse their ids.
            self._executors[key] = native, scope, job
        return self._executors[key][0]

    @accepts_deprecated(
        "self program feed fetch_list feed_var_name fetch_var_name scope return_numpy use_program_cache use_prune",
        feed_var_name=IGNORED,
        fetch_var_name=IGNORED,
        return_numpy=Deprecated("leave it out, values are always arrays"),
        use_program_cache=IGNORED,
        use_prune=IGNORED,
    )
    def run(
        self,
        program: Program | None = None,
        feed: Mapping[str, Any] | None = None,
        fetch_list: Sequence[Variable | str] | None = None,
        *,
        scope: Scope | None = None,
    ) -> list[np.ndarray[Any, Any]]:
        """Runs a program on one batch. After `minimize` this is one training step, which updates the parameters.

        Running a startup program, without `feed` and `fetch_list`, gives parameters their first values.

        Args:
            program: The program; the default main program by default.
            feed: One array per data variable, by name, of shape [B, ...]. A slot is fed as a list of lists of ids, as a
                two-dimensional array, or as a `LoDTensor`.
            fetch_list: The variables, or names, whose values are wanted.
            scope: Where the values of parameters are; the global scope by default.

        Returns:
            One array per entry of `fetch_list`. An array of one number can be formatted like a number.

        Raises:
            TypeError: An argument, or a value to feed, has another type.
            ValueError: A value to feed has another shape than its variable, or a variable cannot be fetched.
            openfleet.ProgramError: A parameter has no value yet, or a loss or gradient is not finite.
            openfleet.OrderError: A job's program is trained before `fleet.init_worker` or after `fleet.stop_worker`.
            openfleet.RankError: A rank of a job without servers is lost.
            openfleet.ServerError: A server of the job does not answer.

        >>> x = static.data("x", [None, 2])
        >>> y = static.nn.fc(x, size=1, bias_attr=False, weight_attr=static.initializer.Constant(2.0))
        >>> exe.run(static.default_startup_program())
        []
        >>> exe.run(feed={"x": [[1.0, 2.0]]}, fetch_list=[y])[0].tolist()
        [[6.0]]
        """
        from ..fleet import _job

        program = _checked(program)
        if feed is not None and not isinstance(feed, Mapping):
            raise TypeError(f"`feed` expects a mapping from names to arrays, got {type(feed).__name__}")
        is_startup = not feed and not fetch_list and _is_startup(program)
        _job.check_training(program, global_scope() if scope is None else scope)
        native = self._for_scope(scope, gives_values=is_startup)
        if is_startup:
            native.run_startup(program._native)
            return []
        names = _names(fetch_list)
        values = native.run(program._native, *columns(program, feed or {}), names)
        return [_typed(program, name, value) for name, value in zip(names, values)]

    def train_from_dataset(
        self,
        program: Program | None = None,
        dataset: Any = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Sequence[Variable | str] | None = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> _native.RunReport:
        """Trains a program on one pass over a dataset.

        Args:
            program: A program with an optimizer (`minimize`); the default main program by default.
            dataset: A `QueueDataset`, `InMemoryDataset` or `WordsDataset`.
            scope: Where the values of parameters are; the global scope by default.
            thread: The number of training threads; by default, and at most, that of the dataset.
            debug: Whether to print how long each op took.
            fetch_list: Variables to print every `print_period` batches of the first thread.
            fetch_info: How to label them; by their names by default.
            print_period: How many batches are between two lines.
            fetch_handler: Receives the values of its variables instead, by time.

        Returns:
            A report with `samples`, `steps`, `seconds`, `samples_per_second`, `skipped_lines` and other counters. A
            restarted worker skips what it trained before; the report says so (`skipped`, `skipped_steps`).

        Raises:
            openfleet.DataError: A line is malformed.
            FileNotFoundError: A file of the dataset does not exist.
            openfleet.OrderError: A worker of a job trains before `fleet.init_worker`.
        """
        args = program, dataset, scope, thread, debug, fetch_list, fetch_info, print_period, fetch_handler
        return self._pass(False, *args)

    def infer_from_dataset(
        self,
        program: Program | None = None,
        dataset: Any = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Sequence[Variable | str] | None = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> _native.RunReport:
        """Runs a program on one pass over a dataset without training: only counters such as those of `auc` change.

        Arguments, result and errors are those of `train_from_dataset`.
        """
        args = program, dataset, scope, thread, debug, fetch_list, fetch_info, print_period, fetch_handler
        return self._pass(True, *args)

    def _pass(
        self,
        infer: bool,
        program: Program | None,
        dataset: Any,
        scope: Scope | None,
        thread: int,
        debug: bool,
        fetch_list: Sequence[Variable | str] | None,
        fetch_info: Sequence[str] | None,
        print_period: int,
        fetch_handler: FetchHandler | None,
    ) -> _native.RunReport:
        from ..dataset import DatasetBase
        from ..fleet import _job

        program = _checked(program)
        if not isinstance(dataset, DatasetBase):
            raise TypeError(f"`dataset` expects a dataset, got {type(dataset).__name__}")
        scope = global_scope() if scope is None else scope
        if not infer:
            _job.check_training(program, scope)
        native = self._for_scope(scope)
        source = dataset._for_pass()
        threads = min(thread, source.thread_num) if thread > 0 else source.thread_num
        job = _job.of_scope(scope)
        if job is not None and not infer:
            threads = _job_threads(job, threads)
        names, tell = _names(fetch_list), _printer(list(fetch_info or []), _names(fetch_list))
        if fetch_handler is not None:
            names, tell = _names(list(fetch_handler.var_dict.values())), _periodic(fetch_handler)

        def observe(step: int, values: list[Any], samples: int, rate: float) -> None:
            if job is not None:
                job.report_progress("evaluating" if infer else "training", samples, rate)
            if names:
                tell(step, [_typed(program, name, value) for name, value in zip(names, values)], rate)

        report = native.run_from_dataset(
            program._native,
            source,
            infer=infer,
            threads=threads,
            fetch=names,
            print_period=max(0, int(print_period)),
            debug=debug,
            observer=observe,
        )
        if report.skipped:
            kind = "an evaluation" if infer else "a training pass"
            _say(f"skipped {kind} that was complete before this worker was restarted")
        elif report.skipped_steps:
            _say(f"skipped {report.skipped_steps:,} batches ({report.skipped_samples:,} rows) that were trained before")
        if debug:
            _print_profile(report)
        return report

    def close(self) -> None:
        """Releases the memory of compiled programs."""
        self._executors.clear()


def _job_threads(job: _native.Fleet, threads: int) -> int:
    """Returns how many threads train: at most as many as the rest of the job expects of this worker."""
    if job.is_collective():
        known, why = 1, "a rank of a collective job has one; start more ranks with `--nproc_per_node`"
    elif job.server_num() > 0:
        known, why = job.thread_num(), "`CPU_NUM` sets how many a worker has"
    else:
        return threads
    if threads > known:
        _say_once(f"using {known} training thread{'s' * (known > 1)} instead of {threads}: {why}")
    return min(threads, known)


@functools.cache
def _say_once(line: str) -> None:
    _say(line)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _checked(program: Program | None) -> Program:
    program = default_main_program() if program is None else program
    if not isinstance(program, Program):
        raise TypeError(f"an executor runs a Program, got {type(program).__name__}")
    return program


def _is_startup(program: Program) -> bool:
    return all(op == "initialize" for op, _, _ in program.ops)


def _names(fetch_list: Sequence[Variable | str] | Variable | str | None) -> list[str]:
    if fetch_list is None:
        return []
    if isinstance(fetch_list, (Variable, str)):
        fetch_list = [fetch_list]
    for one in fetch_list:
        if not isinstance(one, (Variable, str)):
            raise TypeError(f"`fetch_list` expects variables or names, got {type(one).__name__}")
    return [one if isinstance(one, str) else one.name for one in fetch_list]


class Fetched(np.ndarray):
    """One fetched number: an array of shape [1], as PaddlePaddle returns it, that also converts to a number.

    NumPy no longer converts such an array, but `print("%f" % loss)` in many scripts relies on it.

    >>> loss = np.array([0.25]).view(Fetched)
    >>> "%f" % loss, f"{loss:.1f}", bool(loss[0] == 0.25)
    ('0.250000', '0.2', True)
    """

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and self.size == 1 else str(self)


def _typed(program: Program, name: str, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if program._native.variable(name)[1] == "bool":
        value = value.astype(bool)
    return value.view(Fetched) if value.shape == (1,) else value


def _text(value: Any) -> str:
    array = np.asarray(value).reshape(-1)
    return f"{array[0]:.6g}" if array.size == 1 else np.array2string(array, precision=6, threshold=8)


def _printer(info: list[str], names: list[str]) -> Callable[[int, list[Any], float], None]:
    labels = [*info, *names[len(info) :]]

    def tell(step: int, values: list[Any], rate: float) -> None:
        shown = ", ".join(f"{label.strip()} {_text(value)}" for label, value in zip(labels, values))
        print(f"batch {step}: {shown} ({rate:,.0f} samples/s)", flush=True)

    return tell


def _periodic(handler: FetchHandler) -> Callable[[int, list[Any], float], None]:
    last = time.monotonic()

    def tell(step: int, values: list[Any], rate: float) -> None:
        nonlocal last
        if time.monotonic() - last >= handler.period_secs:
            last = time.monotonic()
            handler.handler(dict(zip(handler.var_dict, values)))

    return tell


def _print_profile(report: _native.RunReport) -> None:
    print(f"{report.samples:,} samples in {report.seconds:.1f} s, all threads waited {report.waited_seconds:.1f} s")
    for phase, seconds in report.phases:
        print(f"{seconds:9.3f} s  {phase}")
    for op, seconds in report.profile[:20]:
        print(f"{seconds:9.3f} s  {op}")
