"""The actor that runs one process of a job as its child process.

The actor makes no decisions: it starts, signals and reads its child as the driver asks. It knows Ray only to find its
node's address. The child ends with the actor, even if the actor is killed: `_native.ChildProcess` sees to that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from .. import _native


@dataclass(frozen=True)
class Place:
    """Where a process runs."""

    host: str
    # Reserved until the process starts.
    port: int
    # Another free port, which is not reserved: torch meets there in a collective job.
    other_port: int


class ProcessActor:
    """One process of a job, over all its attempts on this node."""

    def __init__(self, name: str, run: str) -> None:
        self._name = name
        # A replaced actor on the same node gets the same directory, so that nothing is left behind.
        self._directory = os.path.join(tempfile.gettempdir(), f"openfleet-{run}-{name.replace(' ', '-')}")
        self._reserved: _native.PortReservation | None = None
        self._child: _native.ChildProcess | None = None
        self._report = ""

    def place(self, cwd: str | None, driver_cwd: str) -> Place:
        """Goes to the working directory and reserves a port."""
        import ray

        if cwd is None and not ray.get_runtime_context().runtime_env.get("working_dir"):
            cwd = driver_cwd
        if cwd is not None:
            os.chdir(cwd)
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        host = ray.util.get_node_ip_address()
        self._reserved, other = _native.PortReservation(host), _native.PortReservation(host)
        other.release()
        return Place(host, self._reserved.port, other.port)

    def exchange(self, commands: list[tuple[Any, ...]], wait: float) -> list[tuple[Any, ...]]:
        """Carries out commands, then waits for something to report.

        Commands are `("start", attempt, words, module, compat, variables, job_file)`, `("job_file", text)` and
        `("signal", number)`. Events are `("started", pid)`, `("not_started", text)`, `("lines", lines)`,
        `("report", text)` and `("ended", ending, report)`.
        """
        events: list[tuple[Any, ...]] = []
        for kind, *fields in commands:
            if kind == "start":
                events.append(self._start(*fields))
            elif self._child is not None and kind == "job_file":
                # As with `fleetrun`, the job continues without the file.
                with contextlib.suppress(OSError):
                    self._child.write_job_file(*fields)
            elif self._child is not None and kind == "signal":
                self._child.signal(*fields)
        if self._child is None:
            return events
        lines, ending = self._child.poll(0 if events else wait)
        if lines:
            events.append(("lines", lines))
        report = self._child.report()
        if ending is not None:
            events.append(("ended", ending, report))
            self._child = None
        elif report != self._report:
            self._report = report
            events.append(("report", report))
        return events

    def stop(self) -> None:
        """Kills the child and removes the files."""
        self._child = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(
        self,
        attempt: int,
        words: list[str],
        module: bool,
        compat: bool,
        variables: list[tuple[str, str]],
        job_file: str,
    ) -> tuple[Any, ...]:
        # Release the port at the last moment.
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None
        self._report = ""
        try:
            self._child = _native.ChildProcess(
                self._name, attempt, words, module, compat, sys.executable, variables, self._directory, job_file
            )
        except Exception as error:
            return ("not_started", str(error))
        return ("started", self._child.pid)
