"""The command `openfleet`: generates data, trains models, predicts and serves."""

from __future__ import annotations

import signal
import sys

from . import _native


def main(arguments: list[str] | None = None) -> int:
    """Runs the command `openfleet` and returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.openfleet(["openfleet", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
