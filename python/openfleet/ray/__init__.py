"""Runs a job of servers and workers, or of ranks, on a Ray cluster. Needs `pip install 'openfleet[ray]'`.

`launch` does what the command `fleetrun` does, with the processes spread over the nodes of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .. import Error

__all__ = ["JobError", "JobResult", "PlacementError", "launch"]


class JobError(Error):
    """A job failed. The text names the process that failed and ends with its last lines.

    Attributes:
        process: The process that failed, as in `worker 1`; None if no single process did.
        exit_code: The exit code that `fleetrun` would have: that of the process, 128 + signal, or 124 after the
            timeout.
        last_lines: The last lines that the process printed, at most 30.

    Examples:
        >>> from openfleet.ray import JobError
        >>> JobError("worker 1 exited with code 3", process="worker 1", exit_code=3).exit_code
        3
    """

    def __init__(
        self, message: str, process: str | None = None, exit_code: int = 1, last_lines: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.process, self.exit_code, self.last_lines = process, exit_code, list(last_lines)


class PlacementError(Error):
    """The cluster has no room for the processes of a job. The text names the CPUs asked for and those available.

    Examples:
        >>> import openfleet
        >>> from openfleet.ray import PlacementError
        >>> issubclass(PlacementError, openfleet.Error)
        True
    """


@dataclass(frozen=True)
class JobResult:
    """A job that succeeded.

    Attributes:
        job: The name of the job.
        exit_codes: The last exit code of each process, as a shell would report it. Servers that had to be asked to end
            after the workers were done have 143.
        restarts: The restarts that were used.
        output: The lines of each process, if `keep_output` was True; otherwise None.

    Examples:
        >>> from openfleet.ray import JobResult
        >>> JobResult("train-1f", {"server 0": 0, "worker 0": 0}, restarts=0).exit_codes["worker 0"]
        0
    """

    job: str
    exit_codes: dict[str, int]
    restarts: int
    output: dict[str, list[str]] | None = None


def launch(
    script: str,
    arguments: Sequence[str] = (),
    *,
    servers: int,
    workers: int,
    module: bool = False,
    compat: bool = False,
    strategy: Literal["PACK", "SPREAD"] = "PACK",
    cpus_per_server: float = 1,
    cpus_per_worker: float = 1,
    max_restarts: int = 0,
    timeout: float | None = None,
    placement_timeout: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    job: str | None = None,
    keep_output: bool = False,
) -> JobResult:
    """Runs a script as a job on a Ray cluster and waits for its end.

    Every process of the job is a child process of its own Ray actor, and all actors are in one placement group. The
    script finds its role in the environment, as under `fleetrun`, and processes are restarted by the same rules. Their
    lines are printed here with a prefix, as in `[worker 0] ...`. When the call ends, for whatever reason, the
    processes, the actors and the placement group have ended too. Ctrl-C ends the job and raises KeyboardInterrupt;
    processes have ten seconds to exit then, and a second Ctrl-C kills them at once.

    If Ray is not initialized, `ray.init()` is called. OpenFleet and the script must be installed on every node.

    Args:
        script: A Python script, the name of a module (with `module`), or a program. A relative path starts at `cwd`.
        arguments: Passed to the script unchanged.
        servers: The number of servers; 0 for a collective job, whose workers are ranks.
        workers: The number of workers.
        module: Whether `script` is the name of a module, as after `python -m`.
        compat: Whether the script was written for PaddlePaddle: `import paddle` finds `openfleet.compat`.
        strategy: How Ray places the processes: `PACK` on few nodes, `SPREAD` on many.
        cpus_per_server: The CPUs that Ray reserves for each server.
        cpus_per_worker: The CPUs that Ray reserves for each worker.
        max_restarts: The most restarts of the job; -1 for no limit. A failed worker restarts alone; a failed server, or
            a failed rank of a collective job, restarts all processes from the newest checkpoint. A killed actor counts
            as a killed process.
        timeout: The seconds after which the job is ended; None for no limit.
        placement_timeout: The seconds to wait for the placement group, and for actors to start.
        env: Variables that are added to the environment of every process.
        cwd: The working directory on every node. By default the directory of this program, or the `working_dir` of
            Ray's runtime environment if there is one.
        job: The name of the job; by default the name of the script and random digits.
        keep_output: Whether the result has the lines of every process.

    Returns:
        The exit codes, and the lines if `keep_output` is True.

    Raises:
        JobError: A process failed and no restart was left, could not be started, or the timeout expired.
        PlacementError: The cluster had no room for the processes within `placement_timeout`.
        KeyboardInterrupt: Ctrl-C was pressed. The job has ended.
        ValueError: An argument is wrong.
        ImportError: Ray is not installed.

    Examples:
        >>> import openfleet.ray
        >>> openfleet.ray.launch("train.py", servers=2, workers=2)  # doctest: +SKIP
        JobResult(job='train-5f3a1c', exit_codes={'server 0': 0, ...}, restarts=0, output=None)

        Collective, with two CPUs for each of the four ranks:

        >>> openfleet.ray.launch("train.py", servers=0, workers=4, cpus_per_worker=2)  # doctest: +SKIP
        JobResult(job='train-0b9d27', exit_codes={'worker 0': 0, ...}, restarts=0, output=None)
    """
    from ._driver import Command, Driver, Placement

    command = Command([script, *arguments], module, compat, dict(env or {}), cwd)
    placement = Placement(servers, workers, strategy, cpus_per_server, cpus_per_worker, placement_timeout)
    return Driver(command, placement, job, max_restarts, timeout, keep_output).run()
