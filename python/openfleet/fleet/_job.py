"""The one job that this process is part of: the only process-wide state of `fleet`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _native

if TYPE_CHECKING:
    from ..static.program import Program
    from ..static.scope import Scope

_fleet: _native.Fleet | None = None
_working = False
# Whether `stop_worker` was called.
_over = False
# The scope that the job trains in: the one that was current at `init_worker`.
_scope: Scope | None = None

# Whether to say PaddlePaddle's lines too, for those who watch a script's output for them. `openfleet.compat` sets it.
paddle_lines = False

strategy: Any = None
main_program: Program | None = None
startup_program: Program | None = None


def begin(fleet: _native.Fleet) -> None:
    """After `init`."""
    global _fleet, _working, _over, _scope, strategy, main_program, startup_program
    _fleet, _working, _over, _scope = fleet, False, False, None
    strategy, main_program, startup_program = None, None, None


def begin_work(scope: Scope) -> None:
    """After `init_worker`."""
    global _working, _scope
    _working, _scope = True, scope


def end_work() -> None:
    """After `stop_worker`."""
    global _working, _over
    _working, _over = False, True


def current() -> _native.Fleet:
    """The job, or an error before `init`."""
    if _fleet is None:
        raise _native.OrderError("`fleet` is used before `fleet.init`\n\nhint: call `fleet.init()` first")
    return _fleet


def joined() -> _native.Fleet | None:
    """The job, if `init` was called."""
    return _fleet


def at_work() -> _native.Fleet | None:
    """The job, where this process is one of its workers and has begun to work."""
    return _fleet if _working else None


def scope() -> Scope:
    """The scope that the job trains in."""
    assert _scope is not None, "asked for before `init_worker`"
    return _scope


def program() -> Program:
    """Returns the program that the job trains, or the default main program before `minimize`."""
    from ..static.program import default_main_program

    return default_main_program() if main_program is None else main_program


def of_scope(scope: Scope) -> _native.Fleet | None:
    """The job, where it is at work and this is the scope that it trains in. Any other scope is this process's own."""
    return _fleet if _working and scope is _scope else None


def check_training(program: Program, scope: Scope) -> None:
    """Refuses what would train a model of this process's own, where a job should train one together."""
    if _fleet is None or not _fleet.is_worker() or program._native.is_for_test or not program._native.is_trained:
        return
    if _working and scope is not _scope and program is main_program and _fleet.server_num() > 0:
        raise _native.OrderError(
            "the job's program is trained in another scope than the one that was current at `fleet.init_worker`\n\n"
            "hint: the servers have the parameters of that scope; run both in the same one"
        )
    if _working or _over:
        return
    if _fleet.server_num() > 0:
        raise _native.OrderError(
            "a worker of a job with servers trains before `fleet.init_worker`: "
            "every worker would train a model of its own\n\n"
            "hint: call `fleet.init_worker()` after `minimize` and the startup program"
        )
    check_collective()


def check_collective() -> None:
    """Refuses several workers without servers, which would train a model each."""
    if _fleet is not None and _fleet.worker_num() > 1 and _fleet.server_num() == 0:
        raise NotImplementedError(
            f"collective training follows later: each of the {_fleet.worker_num()} workers would train a model of its "
            "own\n\n"
            "hint: train with servers (`fleetrun --server_num=1 --worker_num=2`), in mode sync for the same result"
        )
