"""The command `fleetrun`: starts, watches and ends the processes of a job."""

from __future__ import annotations

import os
import signal
import sys

from . import _native


def main(arguments: list[str] | None = None) -> int:
    """Runs `fleetrun`; scripts are run by this Python. With `--compat` they can `import paddle`."""
    # The launcher listens to signals itself; Python would otherwise remember them and raise when it has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = sys.argv[1:] if arguments is None else arguments
    return _native.fleetrun(["fleetrun", *arguments], sys.executable, os.path.dirname(sys.executable))


if __name__ == "__main__":
    sys.exit(main())
