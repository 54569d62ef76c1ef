"""Log events of the native module, in Python's `logging` under the name `openfleet`.

Without configuration, `logging` prints warnings and errors to standard error. `OPENFLEET_LOG` (`error`, `warn`, `info`,
`debug`, `trace`, `off`) sets a level, and adds a handler for it if `logging` has none.
"""

from __future__ import annotations

import atexit
import logging

from . import _native

logger = logging.getLogger("openfleet")


def begin() -> None:
    """Passes events to `logging` from now on. Called once, when `openfleet.static` is imported."""
    level = _native.log_to(logger.log)
    if level is not None:
        logger.setLevel(level)
        if not logging.getLogger().handlers and not logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
            logger.addHandler(handler)
    atexit.register(_native.flush_log)
