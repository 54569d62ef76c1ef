"""How a script that never calls `fleet.stop_worker` ends.

Leaving the script with exit code 0 is enough: the worker departs then. A script that ends by an exception, or by
`sys.exit` with another code, has not departed: it failed, and its launcher may start it again. (`raise SystemExit(3)`
without `sys.exit` cannot be told from a good end here; a launcher sees the exit code all the same.)
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any

_has_failed = False
_is_watching = False


def depart_at_exit(depart: Callable[[], None]) -> None:
    """Calls `depart` when the script ends well. Idempotent."""
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
    """The script does not end well, whatever its exit code says: it has to start again."""
    global _has_failed
    _has_failed = True
