"""Warnings of the native part, in Python's `logging` under the name `openfleet`.

Without any configuration warnings and errors are shown on standard error, as `logging` does by itself. `OPENFLEET_LOG`
(`error`, `warn`, `info`, `debug`, `trace`, `off`) chooses a level, and shows it where nobody has configured `logging`.
"""

from __future__ import annotations

import atexit
import logging

from . import _native

logger = logging.getLogger("openfleet")


def begin() -> None:
    """Hands over events from now on. Called once, when `openfleet.static` is imported."""
    level = _native.log_to(logger.log)
    if level is not None:
        logger.setLevel(level)
        if not logging.getLogger().handlers and not logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
            logger.addHandler(handler)
    atexit.register(_native.flush_log)
