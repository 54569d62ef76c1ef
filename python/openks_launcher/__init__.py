"""`python -m openks_launcher --mode cpu --worker_num 2 --server_num 2 script.py arguments...`

The launcher of OpenKS. It calls `fleetrun --compat`, so scripts can `import paddle`.
"""

from __future__ import annotations

import argparse
import sys

from openfleet import launch


def main(arguments: list[str] | None = None) -> int:
    """Starts, monitors and stops the processes of a job. Arguments after the script are passed to the script."""
    parser = argparse.ArgumentParser("openks_launcher", description="Start, monitor and stop the processes of a job.")
    parser.add_argument("--mode", choices=("cpu", "gpu"), default="cpu", help="with parameter servers, or without")
    parser.add_argument("--worker_num", type=int, default=2, help="workers to start on this machine (default: 2)")
    parser.add_argument(
        "--server_num", type=int, default=None, help="servers to start on this machine (mode cpu, default: 2)"
    )
    parser.add_argument("--log_dir", default=None, help="directory for the output of the processes, one file each")
    parser.add_argument("--start_port", "--started_port", type=int, default=None, help="the first port")
    parser.add_argument("script", help="the Python script that every process runs")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(arguments)
    if options.mode == "gpu" and options.server_num is not None:
        print("warning: --server_num has no effect in mode gpu, which has no servers", file=sys.stderr)
    command = ["--compat"]
    if options.mode == "cpu":
        servers = 2 if options.server_num is None else options.server_num
        command += [f"--server_num={servers}", f"--worker_num={options.worker_num}"]
    else:
        command += [f"--nproc_per_node={options.worker_num}"]
    for name in ("log_dir", "start_port"):
        value = getattr(options, name)
        command += [] if value is None else [f"--{name}={value}"]
    return launch.main([*command, options.script, *options.arguments])


if __name__ == "__main__":
    sys.exit(main())
