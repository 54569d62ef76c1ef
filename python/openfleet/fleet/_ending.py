"""Stops the worker when a script ends without `fleet.stop_worker`.

A script that ends with exit code 0 departs from the job. A script that ends with an exception, or with another code of
`sys.exit`, does not: it failed, and its launcher may restart it. (`raise SystemExit(3)` without `sys.exit` cannot be
distinguished from a successful end here; the launcher still sees the exit code.)
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any

_has_failed = False
_is_watching = False


def depart_at_exit(depart: Callable[[], None]) -> None:
    """Registers `depart` to be called when the script ends successfully. Idempotent."""
    global _is_watching
    if _is_watching:
        return
    _is_watching = True
    show, leave = sys.excepthook, sys.exit

    def excepthook(*exception: Any) -> None:
        fail()
        show(*exception)

    def exit(status: Any = None, /) -> None:
        if status not in (None, 0):
            fail()
        leave(status)

    sys.excepthook, sys.exit = excepthook, exit  # type: ignore[assignment]
    atexit.register(lambda: None if _has_failed else depart())


def fail() -> None:
    """Marks the script as failed, whatever its exit code will be. Called from the native side when it must restart."""
    global _has_failed
    _has_failed = True
