"""The job of this process: the only process-wide state of `fleet`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _native

if TYPE_CHECKING:
    from ..static.program import Program
    from ..static.scope import Scope

_fleet: _native.Fleet | None = None
_working = False
# Whether `stop_worker` was called.
_over = False
# The scope that the job trains in: the global scope at the time of `init_worker`.
_scope: Scope | None = None

# Whether to print PaddlePaddle's lines too, for programs that wait for them in the output. `openfleet.compat` sets it.
paddle_lines = False

# What other libraries do when values of the job are new that they did not train, after `init_worker` and `load_model`,
# and before its values are read: by `init_worker`, and when they are saved.
_when_new: list[Callable[[], None]] = []
_when_read: list[Callable[[], None]] = []

# The address of the checkpoint that was saved or loaded last.
checkpoint: str | None = None

strategy: Any = None
main_program: Program | None = None
startup_program: Program | None = None


def begin(fleet: _native.Fleet) -> None:
    """Starts a new job. Called by `init`."""
    global _fleet, _working, _over, _scope, checkpoint, strategy, main_program, startup_program
    _fleet, _working, _over, _scope, checkpoint = fleet, False, False, None, None
    strategy, main_program, startup_program = None, None, None
    _when_new.clear()
    _when_read.clear()


def listen(when_new: Callable[[], None], when_read: Callable[[], None]) -> None:
    """Calls a function whenever values are new that this process did not train, and another before values are read."""
    _when_new.append(when_new)
    _when_read.append(when_read)


def is_listened_to() -> bool:
    """Returns whether another library trains in this job."""
    return bool(_when_new)


def tell_new_values() -> None:
    """Says that values are new."""
    for listener in _when_new:
        listener()


def tell_reading() -> None:
    """Says that values are about to be read."""
    for listener in _when_read:
        listener()


def begin_work(scope: Scope) -> None:
    """Records that this worker has started. Called by `init_worker`."""
    global _working, _scope
    _working, _scope = True, scope


def end_work() -> None:
    """Records that this worker has stopped. Called by `stop_worker`."""
    global _working, _over
    _working, _over = False, True


def current() -> _native.Fleet:
    """Returns the job. Raises OrderError before `init`."""
    if _fleet is None:
        raise _native.OrderError("`fleet` is used before `fleet.init`\n\nhint: call `fleet.init()` first")
    return _fleet


def joined() -> _native.Fleet | None:
    """Returns the job, or None before `init`."""
    return _fleet


def at_work() -> _native.Fleet | None:
    """Returns the job between `init_worker` and `stop_worker`, otherwise None."""
    return _fleet if _working else None


def is_over() -> bool:
    """Returns whether this worker has left the job."""
    return _over


def scope() -> Scope:
    """Returns the scope that the job trains in."""
    assert _scope is not None, "the scope of the job is read before `init_worker`"
    return _scope


def program() -> Program:
    """Returns the program that the job trains, or the default main program before `minimize`."""
    from ..static.program import default_main_program

    return default_main_program() if main_program is None else main_program


def of_scope(scope: Scope) -> _native.Fleet | None:
    """Returns the job if this worker has started and the job trains in this scope; None for a local scope."""
    return _fleet if _working and scope is _scope else None


def join_if_collective(scope: Scope) -> None:
    """Joins a collective job when its script first runs a program after `minimize`.

    PaddlePaddle's collective scripts do not call `init_worker`.
    """
    from ..static.scope import global_scope

    if _fleet is None or _working or _over or main_program is None or scope is not global_scope():
        return
    if _fleet.is_collective():
        from . import init_worker

        init_worker()


def check_training(program: Program, scope: Scope) -> None:
    """Raises where a worker of a job would train a model of its own instead of the job's."""
    if _fleet is None or not _fleet.is_worker() or program._native.is_for_test or not program._native.is_trained:
        return
    if _working and scope is not _scope and program is main_program and _fleet.server_num() > 0:
        raise _native.OrderError(
            "the job's program is trained in a scope other than the one that was current at `fleet.init_worker`\n\n"
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
