"""Runs programs: one batch at a time, or a whole dataset on several threads.

On a worker of a job, after `fleet.init_worker()`, every executor works on the tables of the job's servers, in the scope
that was current then. Any other scope is this process's own: a model that is loaded into it changes nothing of the job.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _native
from .feed import columns
from .program import Program, Variable, default_main_program
from .scope import Scope, global_scope


class CPUPlace:
    """The only place there is."""

    def __repr__(self) -> str:
        return "CPUPlace()"


class FetchHandler:
    """Looks at fetched values now and then: override `handler`."""

    def __init__(self, var_dict: Mapping[str, Variable], period_secs: int = 60) -> None:
        self.var_dict, self.period_secs = dict(var_dict), period_secs

    def handler(self, res_dict: Mapping[str, Any]) -> None:
        """Called with the values by name."""
        for name, value in res_dict.items():
            print(f"{name}: {_text(value)}")


class Executor:
    """Runs programs on the values of a scope."""

    def __init__(self, place: Any = None) -> None:
        self.place = CPUPlace() if place is None else place
        self._executors: dict[tuple[int, int], tuple[_native.Executor, Any, Any]] = {}

    def _native(self, scope: Scope | None, gives_values: bool = False) -> _native.Executor:
        """For a scope; `gives_values` says that all its parameters get values now."""
        from ..fleet import _job

        scope = global_scope() if scope is None else scope
        job = _job.of_scope(scope)
        if gives_values:
            scope._trained_elsewhere = False
        elif job is not None and job.server_num() > 0:
            scope._trained_elsewhere = True
        elif scope._trained_elsewhere:
            raise _native.OrderError(
                "the parameters of this scope were on the job's servers, which this worker has left\n\n"
                "hint: evaluate before `fleet.stop_worker`, load a checkpoint, or run the startup program to begin anew"
            )
        key = id(scope), id(job)
        if key not in self._executors:
            native = _native.Executor(scope._native) if job is None else job.executor(scope._native)
            # The scope and the job are kept, so that their numbers are not given to others.
            self._executors[key] = native, scope, job
        return self._executors[key][0]

    def run(
        self,
        program: Program | None = None,
        feed: Mapping[str, Any] | None = None,
        fetch_list: Sequence[Variable | str] | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,
        use_prune: bool = False,
    ) -> list[np.ndarray[Any, Any]]:
        """One step: a program that is trained updates its parameters. A startup program gives first values."""
        from ..fleet import _job

        program = _checked(program)
        if feed is not None and not isinstance(feed, Mapping):
            raise TypeError(f"`feed` expects a mapping from names to arrays, got {type(feed).__name__}")
        is_startup = not feed and not fetch_list and _is_startup(program)
        _job.check_training(program, global_scope() if scope is None else scope)
        native = self._native(scope, gives_values=is_startup)
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
        """One pass of training; every `print_period` batches of the first thread prints what `fetch_list` names."""
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
        """One pass that changes nothing but counters such as those of `auc`."""
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
        native = self._native(scope)
        source = dataset._for_a_pass()
        threads = min(thread, source.thread_num) if thread > 0 else source.thread_num
        job = _job.of_scope(scope)
        if job is not None and job.server_num() > 0 and not infer:
            known = job.thread_num()
            if threads > known:
                _say(f"{threads} training threads asked for, {known} used: `CPU_NUM` says how many a worker has")
            threads = min(threads, known)
        names, tell = _names(fetch_list), _printer(list(fetch_info or []), _names(fetch_list))
        if fetch_handler is not None:
            names, tell = _names(list(fetch_handler.var_dict.values())), _handed(fetch_handler)

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
        """Gives the memory of compiled programs back."""
        self._executors.clear()


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


class Fetched(np.ndarray):  # type: ignore[type-arg]
    """One fetched number: an array of shape [1] as the original gives it, and a number where one is wanted.

    NumPy no longer takes such an array for a number, which `print("%f" % loss)` of many scripts counts on.

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


def _handed(handler: FetchHandler) -> Callable[[int, list[Any], float], None]:
    last = time.monotonic()

    def tell(step: int, values: list[Any], rate: float) -> None:
        nonlocal last
        if time.monotonic() - last >= handler.period_secs:
            last = time.monotonic()
            handler.handler(dict(zip(handler.var_dict, values)))

    return tell


def _print_profile(report: _native.RunReport) -> None:
    print(f"{report.samples:,} samples in {report.seconds:.1f} s, {report.waited_seconds:.1f} s waiting for data")
    for op, seconds in report.profile[:20]:
        print(f"{seconds:9.3f} s  {op}")
