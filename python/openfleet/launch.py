"""The command `fleetrun`: starts, monitors and stops the processes of a job."""

from __future__ import annotations

import os
import signal
import sys

from . import _native


def main(arguments: list[str] | None = None) -> int:
    """Runs the command `fleetrun` and returns its exit code. Scripts run with this Python; `--compat` lets them
    `import paddle`."""
    # The launcher handles signals itself. Otherwise Python would raise KeyboardInterrupt after the launcher has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = sys.argv[1:] if arguments is None else arguments
    return _native.fleetrun(["fleetrun", *arguments], sys.executable, os.path.dirname(sys.executable))


if __name__ == "__main__":
    sys.exit(main())
