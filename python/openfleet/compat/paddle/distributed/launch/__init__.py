"""`python -m paddle.distributed.launch`: `fleetrun --compat` with PaddlePaddle's defaults."""

from __future__ import annotations

import itertools
import sys

from openfleet import launch as _launch

# Options that say how many processes there are. Without any of them PaddlePaddle starts one process on a CPU machine.
_COUNTS = (
    "cluster_node_ips devices gpus ips master nnodes nproc_per_node npus run_mode selected_gpus selected_npus "
    "selected_xpus server_num servers trainer_num trainers worker_num workers xpus"
)


def main(arguments: list[str] | None = None) -> int:
    """Starts, monitors and stops the processes of a job, and returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Words of the launcher come before the script.
    options = itertools.takewhile(lambda word: word != "-m" and not word.endswith(".py"), arguments)
    names = {word.lstrip("-").split("=")[0].replace("-", "_") for word in options if word.startswith("--")}
    default = [] if names & set(_COUNTS.split()) else ["--nproc_per_node=1"]
    return _launch.main(["--compat", *default, *arguments])
