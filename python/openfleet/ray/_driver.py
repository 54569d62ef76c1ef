"""Places the actors of a job, passes what happens to the rules of `fleetrun`, and carries out what these decide.

The rules are `_native.ExternalJob`: this module decides nothing about restarts. There is one call at a time per actor,
`ProcessActor.exchange`, which takes commands there and brings events back; it returns within a quarter of a second, so
an actor that does not return is known to be lost.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import _native
from . import JobError, JobResult, PlacementError
from ._actor import Place, ProcessActor

# The time that an actor waits for its child to say something.
POLL = 0.25
# An actor that has not returned for so long is lost.
UNRESPONSIVE = 30.0
# An actor whose child was killed is lost if it does not report the end of the child within this time. Shorter than the
# five seconds after which the rules give up.
KILLED = 3.0
# The time for actors to end their children when the job is over.
STOP = 5.0
# A wait for the cluster is mentioned so often.
MENTION = 10.0
LAST_LINES = 30
# How the end of an actor that died counts: as the end of a process that was killed.
LOST = (None, int(signal.SIGKILL))


@dataclass(frozen=True)
class Command:
    """What every process runs."""

    words: list[str]
    module: bool
    compat: bool
    env: dict[str, str]
    cwd: str | None


@dataclass(frozen=True)
class Placement:
    """The processes, and what Ray reserves for each."""

    servers: int
    workers: int
    strategy: str
    cpus_per_server: float
    cpus_per_worker: float
    timeout: float

    def check(self) -> None:
        if self.strategy not in ("PACK", "SPREAD"):
            raise ValueError(f"`strategy`: expected `PACK` or `SPREAD`, got `{self.strategy}`")
        for name in ("servers", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}`: expected a number from 0 up, got `{getattr(self, name)}`")
        for name in ("cpus_per_server", "cpus_per_worker", "timeout"):
            if not getattr(self, name) > 0:
                name, got = name.replace("timeout", "placement_timeout"), getattr(self, name)
                raise ValueError(f"`{name}`: expected a number above 0, got `{got}`")

    def cpus(self) -> list[float]:
        """The CPUs of each process, servers first."""
        return [float(self.cpus_per_server)] * self.servers + [float(self.cpus_per_worker)] * self.workers

    def describe(self) -> str:
        roles = [(self.servers, "server", self.cpus_per_server), (self.workers, "worker", self.cpus_per_worker)]
        parts = [f"{count} {role}{'s' * (count != 1)} with {cpus:g} each" for count, role, cpus in roles if count]
        return f"{sum(self.cpus()):g} CPUs ({', '.join(parts)}; strategy {self.strategy})"


@dataclass
class Slot:
    """One process of the job, over all its attempts and actors."""

    name: str
    actor: Any = None
    # The number of actors that were created for it.
    actors: int = 0
    host: str = ""
    # The call that the actor has not returned from, and when it was made.
    pending: Any = None
    called: float = 0.0
    commands: list[tuple[Any, ...]] = field(default_factory=list)
    # Whether it was started and has not ended.
    is_running: bool = False
    # A new actor that has not told its place yet must do so by this time.
    place_by: float | None = None
    # The child was killed, and its end must be known by this time.
    ended_by: float | None = None
    last: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=LAST_LINES))
    lines: list[str] = field(default_factory=list)
    ending: tuple[int | None, int | None] = (None, None)


class Driver:
    """Runs one job."""

    def __init__(
        self,
        command: Command,
        placement: Placement,
        job: str | None,
        max_restarts: int,
        timeout: float | None,
        keep_output: bool,
    ) -> None:
        placement.check()
        self._command, self._placement, self._keep_output = command, placement, keep_output
        self._job = _native.ExternalJob(
            command.words,
            command.module,
            command.compat,
            placement.servers,
            placement.workers,
            job,
            max_restarts,
            timeout,
        )
        self._slots = [Slot(name) for name in self._job.process_names()]
        self._ray = _ray()
        self._group: Any = None
        self._job_file = ""
        self._start_error = ""
        self._interrupts = 0
        no_colour = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._has_colour = sys.stdout.isatty() and not no_colour

    def run(self) -> JobResult:
        """Runs the job to its end, and ends everything that it started."""
        if not self._ray.is_initialized():
            self._ray.init()
        _tell(self._job.headline())
        try:
            self._reserve()
            places = self._first_places()
            with self._counted_interrupts():
                endpoints = [(place.host, place.port) for place in places]
                first = places[self._placement.servers]
                self._perform(self._job.begin(endpoints, (first.host, first.other_port)))
                while (outcome := self._job.outcome()) is None:
                    self._step()
        finally:
            with self._counted_interrupts():
                self._close()
        return self._judge(*outcome)

    # Before the processes start

    def _reserve(self) -> None:
        """Waits for the placement group."""
        from ray.util.placement_group import placement_group

        bundles = [{"CPU": cpus} for cpus in self._placement.cpus()]
        self._group = placement_group(bundles, strategy=self._placement.strategy)
        began = time.monotonic()
        while not self._group.wait(timeout_seconds=min(MENTION, self._left(began))):
            if self._left(began) <= 0:
                raise PlacementError(self._no_room())
            _tell(f"waiting for Ray to place {self._placement.describe()}: {time.monotonic() - began:.0f} s so far")

    def _left(self, began: float) -> float:
        return max(0.0, began + self._placement.timeout - time.monotonic())

    def _no_room(self) -> str:
        ray = self._ray
        total, free = (each.get("CPU", 0.0) for each in (ray.cluster_resources(), ray.available_resources()))
        nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        return (
            f"job {self._job.name} was not placed within {self._placement.timeout:g} s: it asks for "
            f"{self._placement.describe()}, and the cluster has {total:g} CPUs, of which {free:g} are available; its "
            f"largest node has {max(nodes, default=0.0):g}\n\n"
            "hint: ask for fewer CPUs (`cpus_per_server`, `cpus_per_worker`) or fewer processes, add nodes, or wait "
            "longer (`placement_timeout`)"
        )

    def _first_places(self) -> list[Place]:
        """Creates all actors and waits until each has told its place."""
        for index in range(len(self._slots)):
            self._create(index)
        calls = {slot.pending: slot for slot in self._slots}
        began = time.monotonic()
        waiting = list(calls)
        while waiting:
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=min(MENTION, self._left(began)))
            names = ", ".join(calls[call].name for call in waiting)
            if waiting and self._left(began) <= 0:
                raise JobError(f"no actor has started within {self._placement.timeout:g} s for {names}")
            if waiting:
                _tell(f"waiting for the actors of {names}: {time.monotonic() - began:.0f} s so far")
        return [self._placed(slot) for slot in self._slots]

    def _create(self, index: int) -> None:
        """Creates the actor of a process and asks for its place."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        slot = self._slots[index]
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        # The rules restart it, not Ray.
        options = {"max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": strategy}
        slot.actors += 1
        # The run and the number make the name unique: Ray may still know an actor that has died.
        name = f"{self._job.name}/{self._job.run}/{slot.name}/{slot.actors}"
        actor = self._ray.remote(ProcessActor).options(name=name, num_cpus=self._placement.cpus()[index], **options)
        slot.actor = actor.remote(slot.name, self._job.run)
        slot.pending, slot.called = slot.actor.place.remote(self._command.cwd, os.getcwd()), time.monotonic()
        slot.place_by = slot.called + self._placement.timeout

    def _placed(self, slot: Slot) -> Place:
        """The answer of a new actor."""
        try:
            place: Place = self._ray.get(slot.pending)
        except self._ray.exceptions.RayActorError as error:
            raise JobError(f"the actor of {slot.name} died before the process was started: {error}") from error
        except self._ray.exceptions.RayTaskError as error:
            raise JobError(
                f"{slot.name} cannot be placed: {error.cause}\n\n"
                "hint: `cwd` must exist on every node; with `ray.init(runtime_env={'working_dir': ...})` Ray copies it"
            ) from error
        slot.pending, slot.place_by, slot.host = None, None, place.host
        return place

    # While they run

    def _step(self) -> None:
        """Waits for events, at most for a quarter of a second, and handles them."""
        self._replace()
        for slot in self._slots:
            if slot.actor is not None and slot.pending is None and (slot.is_running or slot.commands):
                slot.pending, slot.called = slot.actor.exchange.remote(slot.commands, POLL), time.monotonic()
                slot.commands = []
        self._collect(self._wait())
        self._give_up()
        while self._interrupts > 0:
            self._interrupts -= 1
            self._perform(self._job.interrupted())
        # The rules take a process for started when they ask for it, so they wait for a new actor to have a place.
        if all(slot.place_by is None for slot in self._slots):
            self._perform(self._job.tick())

    def _wait(self) -> list[int]:
        """The processes whose calls have returned."""
        calls = {slot.pending: index for index, slot in enumerate(self._slots) if slot.pending is not None}
        due = self._job.next_tick()
        wait = POLL if due is None else min(POLL, max(due, 0.01))
        if not calls:
            time.sleep(wait)
            return []
        self._ray.wait(list(calls), num_returns=1, timeout=wait)
        ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return [calls[call] for call in ready]

    def _collect(self, returned: list[int]) -> None:
        """Handles what calls have returned. Processes that ended are reported together."""
        ended = []
        for index in returned:
            slot = self._slots[index]
            if slot.place_by is not None:
                place = self._placed(slot)
                self._job.place(index, (place.host, place.port))
                if index == self._placement.servers:
                    self._job.meet_at((place.host, place.other_port))
                continue
            call, slot.pending = slot.pending, None
            try:
                events = self._ray.get(call)
            except self._ray.exceptions.RayActorError:
                ended += self._lose(index)
                continue
            for kind, *fields in events:
                if kind == "ended":
                    slot.is_running, slot.ended_by, slot.ending = False, None, fields[0]
                    ended.append((index, *fields))
                else:
                    self._handle(index, kind, fields[0])
        if ended:
            self._perform(self._job.ended(ended))

    def _handle(self, index: int, kind: str, what: Any) -> None:
        slot = self._slots[index]
        if kind == "lines":
            for line in what:
                sys.stdout.write(self._job.prefixed(index, line, self._has_colour))
            sys.stdout.flush()
            slot.last.extend(what)
            if self._keep_output:
                slot.lines.extend(what)
        elif kind == "report":
            self._perform(self._job.reported(index, what))
        elif kind == "started":
            self._job.started(index, what)
        elif kind == "not_started":
            slot.is_running = False
            self._start_error = self._start_error or what
            self._perform(self._job.not_started(index))

    def _perform(self, actions: list[tuple[Any, ...]]) -> None:
        for kind, *fields in actions:
            if kind == "tell":
                _tell(fields[0])
            elif kind == "job_file":
                (self._job_file,) = fields
                for slot in self._slots:
                    if slot.is_running:
                        slot.commands.append(("job_file", self._job_file))
            elif kind == "signal":
                index, number = fields
                self._slots[index].commands.append(("signal", number))
                if number == signal.SIGKILL:
                    self._slots[index].ended_by = time.monotonic() + KILLED
            elif self._job.is_stopping:
                # A process that should have started before could not be started.
                self._perform(self._job.skipped(fields[0]))
            else:
                self._start(*fields)

    def _start(self, index: int, attempt: int) -> None:
        slot, command = self._slots[index], self._command
        variables = [*command.env.items(), *self._job.environment(index, attempt)]
        start = ("start", attempt, command.words, command.module, command.compat, variables, self._job_file)
        slot.is_running, slot.ended_by, slot.commands = True, None, [start]

    # Actors that die

    def _lose(self, index: int) -> list[tuple[int, tuple[int | None, int | None], str]]:
        """Forgets an actor that died or is taken for dead. Returns the end of its process, if it ran."""
        slot = self._slots[index]
        with contextlib.suppress(Exception):
            self._ray.kill(slot.actor, no_restart=True)
        slot.actor, slot.pending, slot.commands, slot.ended_by = None, None, [], None
        if not slot.is_running:
            return []
        slot.is_running, slot.ending = False, LOST
        return [(index, LOST, "")]

    def _give_up(self) -> None:
        """Takes actors for dead that do not answer."""
        now = time.monotonic()
        lost = []
        for index, slot in enumerate(self._slots):
            if slot.place_by is not None and now >= slot.place_by:
                raise JobError(f"no new actor has started within {self._placement.timeout:g} s for {slot.name}")
            is_silent = slot.pending is not None and slot.place_by is None and now >= slot.called + UNRESPONSIVE
            is_not_killed = slot.ended_by is not None and now >= slot.ended_by
            if is_silent or is_not_killed:
                _tell(f"the actor of {slot.name} on {slot.host} does not answer; it is killed")
                lost += self._lose(index)
        if lost:
            self._perform(self._job.ended(lost))

    def _replace(self) -> None:
        """Creates actors for processes that will restart and have none. The placement group keeps their room."""
        for index, slot in enumerate(self._slots):
            if slot.actor is None and self._job.is_paused(index):
                self._create(index)
            elif slot.place_by is not None and self._job.is_stopping:
                self._lose(index)
                slot.place_by = None

    # The end

    def _close(self) -> None:
        """Ends all processes and actors, and removes the placement group."""
        ray = self._ray
        actors = [slot.actor for slot in self._slots if slot.actor is not None]
        # The connection to the cluster may be lost: then Ray ends the actors of this driver.
        with contextlib.suppress(Exception):
            stops = [actor.stop.remote() for actor in actors]
            if stops:
                ray.wait(stops, num_returns=len(stops), timeout=STOP)
        for actor in actors:
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)
        if self._group is not None:
            from ray.util.placement_group import remove_placement_group

            with contextlib.suppress(Exception):
                remove_placement_group(self._group)

    def _judge(self, exit_code: int, error: str | None, process: int | None) -> JobResult:
        slot = None if process is None else self._slots[process]
        if exit_code == 0:
            codes = {slot.name: _native.shell_exit_code(slot.ending) for slot in self._slots}
            output = {slot.name: slot.lines for slot in self._slots} if self._keep_output else None
            return JobResult(self._job.name, codes, self._job.restarts, output)
        if error is None and slot is None:
            raise KeyboardInterrupt
        name, last = (None, []) if slot is None else (slot.name, list(slot.last))
        text = error or f"{name} could not be started: {self._start_error}"
        if slot is not None and error is not None:
            heading = f"the last lines of {name} on {slot.host}:" if last else f"it printed nothing on {slot.host}"
            text = "\n".join([f"{text}\n\n{heading}", *last])
        raise JobError(text, name, exit_code, last)

    @contextlib.contextmanager
    def _counted_interrupts(self) -> Iterator[None]:
        """Counts interrupts instead of raising KeyboardInterrupt in the middle of something."""

        def count(number: int, frame: Any) -> None:
            self._interrupts += 1

        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, count)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError("`openfleet.ray` needs Ray\n\nhint: pip install 'openfleet[ray]'") from error
    return ray


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
