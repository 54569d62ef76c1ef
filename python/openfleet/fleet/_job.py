"""The one job that this process is part of: the only process-wide state of `fleet`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _native

if TYPE_CHECKING:
    from ..static.program import Program

_fleet: _native.Fleet | None = None
_working = False

strategy: Any = None
main_program: Program | None = None
startup_program: Program | None = None


def begin(fleet: _native.Fleet) -> None:
    """After `init`."""
    global _fleet, _working, strategy, main_program, startup_program
    _fleet, _working, strategy, main_program, startup_program = fleet, False, None, None, None


def set_working(working: bool) -> None:
    """Between `init_worker` and `stop_worker`."""
    global _working
    _working = working


def current() -> _native.Fleet:
    """The job, or an error before `init`."""
    if _fleet is None:
        raise _native.OrderError("`fleet` is used before `fleet.init`\n\nhint: call `fleet.init()` first")
    return _fleet


def at_work() -> _native.Fleet | None:
    """The job, where this process is one of its workers and has begun to work."""
    return _fleet if _working else None
