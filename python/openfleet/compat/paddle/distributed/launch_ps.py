"""`python -m paddle.distributed.launch_ps` of PaddlePaddle 1.x: two servers and two workers by default."""

from __future__ import annotations

import argparse
import sys

from openfleet import launch as _launch


def main(arguments: list[str] | None = None) -> int:
    """Starts, monitors and stops the processes of a job, and returns the exit code."""
    parser = argparse.ArgumentParser("launch_ps", add_help=False, allow_abbrev=False)
    parser.add_argument("--worker_num", default="2")
    parser.add_argument("--server_num", default="2")
    options, others = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    return _launch.main(
        ["--compat", f"--server_num={options.server_num}", f"--worker_num={options.worker_num}", *others]
    )


if __name__ == "__main__":
    sys.exit(main())
