"""One run: generates its data, starts the job under `fleetrun`, applies the fault, and judges the outcome.

A job is 2 servers and 2 workers. Every file has the same number of rows, a multiple of batch x threads, so that sync
and half_async divide gradients by the same number in every step; the loss is multiplied by that number.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import faults
from combinations import Run

WORKERS = SERVERS = 2
FILES_OF_A_WORKER = 2
BATCH = 4
MAX_RESTARTS = 3
# Steps of a thread in all epochs together, in Python: a few seconds of training. The CLI is twice as fast, a proxy or a
# bad network makes steps slow.
STEPS = {"sync": 3000, "half_async": 3000, "async": 3000, "hybrid": 3000, "geo": 6000}
STEPS_OF_SLOW_FAULTS = {"drop": 600, "reset": 1200}
REPORTS = 60  # lines of progress in a run, by which the moment of the fault is found
RESETS = 5

HERE = Path(__file__).resolve().parent


@dataclasses.dataclass
class Place:
    """Where the programs are."""

    binaries: Path
    limit: float
    dropper: list[str]


@dataclasses.dataclass
class Result:
    """How a run ended."""

    outcome: str  # exact, refused, WRONG, HUNG; skipped is no outcome of the product
    detail: str = ""
    restarts: int = 0
    seconds: float = 0.0
    named: float | None = None  # seconds from the fault to the first line that names the victim
    restarted: float | None = None  # seconds from the fault to the first line that tells of a restart

    @property
    def is_failure(self) -> bool:
        return self.outcome in ("WRONG", "HUNG", "refused")


class Job:
    """The files and the command of a run, in its own directory."""

    def __init__(self, run: Run, place: Place, directory: Path, model: str = "counter", disturbed: bool = True) -> None:
        self.run, self.place, self.directory, self.model = run, place, directory, model
        self.fault = run.what.fault if disturbed else "none"
        self.chance = random.Random(run.seed)
        what = run.what
        self.threads = what.threads if model == "counter" else 1
        steps = STEPS_OF_SLOW_FAULTS.get(what.fault, STEPS[what.mode] * (2 if what.form == "cli" else 1))
        self.steps_of_an_epoch = steps // what.epochs // FILES_OF_A_WORKER * FILES_OF_A_WORKER
        self.steps = self.steps_of_an_epoch * what.epochs
        self.period = max(1, self.steps // REPORTS)
        self.final = directory / "final"
        self.expected = self._write_data(directory / "train")
        # Drawn in the same order for every kind of fault, so that a run depends on its seed alone.
        self.moment = self.chance.uniform(0.05, 0.85)
        self.worker, self.server = self.chance.randrange(WORKERS), self.chance.randrange(SERVERS)
        self.failing_file = self.chance.randrange(FILES_OF_A_WORKER * what.epochs)
        self.failing_row = self.chance.randrange(self._rows_of_a_file())
        self.failing_step = self.chance.randrange(1, self.steps)
        self.reset_pauses = [self.chance.uniform(0.02, 0.3) for _ in range(RESETS)]
        self.proxy: faults.Proxy | None = None
        self.start_port = 0

    def undisturbed(self, directory: Path) -> Job:
        """The same data and options without the fault."""
        return Job(self.run, self.place, directory, self.model, disturbed=False)

    def _rows_of_a_file(self) -> int:
        return self.steps_of_an_epoch * BATCH * self.threads // FILES_OF_A_WORKER

    def _write_data(self, directory: Path) -> dict[int, int]:
        """Writes files of MultiSlot text. Returns the count that each key must have at the end."""
        directory.mkdir(parents=True)
        counts: collections.Counter[int] = collections.Counter()
        for part in range(WORKERS * FILES_OF_A_WORKER):
            lines = []
            for _ in range(self._rows_of_a_file()):
                # Small numbers are frequent, and some keys need 63 bits.
                a = [int(3000 * self.chance.random() ** 3) for _ in range(self.chance.randrange(3))]
                b = (1 + self.chance.randrange(500)) * 0x1F35_9A77_0000_0001 % (1 << 63)
                counts.update([*a, b])
                lines.append(f"1 {self.chance.randrange(2)} {' '.join(map(str, [len(a), *a]))} 1 {b}\n")
            (directory / f"part-{part}.txt").write_text("".join(lines))
        return {key: count * self.run.what.epochs for key, count in counts.items()}

    def scale(self) -> int:
        """The number that the mode divides gradients by."""
        return {"sync": WORKERS * self.threads, "half_async": self.threads}.get(self.run.what.mode, 1)

    def command(self) -> list[str]:
        """Returns the command to start. `self.start_port` and `self.proxy` must be set."""
        what = self.run.what
        fleetrun = [str(self.place.binaries / "fleetrun"), f"--server_num={SERVERS}", f"--worker_num={WORKERS}"]
        fleetrun += [f"--max-restarts={MAX_RESTARTS}"]
        if what.form == "cli":
            program = [str(self.place.binaries / "openfleet"), *self._cli_arguments()]
        else:
            python = [sys.executable] if self.proxy else ["--python", sys.executable]
            program = [*python, str(HERE / "train.py"), *self._script_arguments()]
        if self.proxy:
            fleetrun += [f"--start-port={self.start_port}", "sh", str(HERE / "through_proxy.sh")]
        namespace = list(faults.NAMESPACE) if self.fault == "drop" else []
        return [*namespace, *fleetrun, *program]

    def _cli_arguments(self) -> list[str]:
        what = self.run.what
        arguments = ["train", "--model", self.model, "--mode", what.mode, "--train", "train/*.txt"]
        arguments += ["--dense", "0", "--slots", "2", "--batch", str(BATCH), "--threads", str(self.threads)]
        arguments += ["--epochs", str(what.epochs), "--print-period", str(self.period), "--save", "final"]
        if self.model == "counter":
            arguments += ["--scale", str(self.scale())]
        else:
            arguments += ["--hidden", "8,4", "--dim", "4", "--lr", "0.01"]
        if what.mode == "geo":
            arguments += ["--k-steps", "5"]
        if what.saves:
            arguments += ["--save-every", str(max(1, self.steps // 10))]
        if self.fault == "fail":
            arguments += ["--pipe-command", self._failing_reader()]
        return arguments

    def _script_arguments(self) -> list[str]:
        what = self.run.what
        arguments = ["--form", what.form, "--mode", what.mode, "--files", "train", "--epochs", str(what.epochs)]
        arguments += ["--threads", str(self.threads), "--batch", str(BATCH), "--scale", str(self.scale())]
        arguments += ["--final", "final", "--print-period", str(self.period)]
        if what.saves:
            arguments += ["--checkpoint", "checkpoint"]
        if self.fault == "fail" and what.form in ("feed", "torch"):
            arguments += ["--fail-once", f"failed:{self.worker}:{self.failing_step}"]
        elif self.fault == "fail":
            arguments += ["--pipe-command", self._failing_reader()]
        return arguments

    def _failing_reader(self) -> str:
        words = [sys.executable, HERE / "reader.py", "failed", self.worker, self.failing_file, self.failing_row]
        return shlex.join(str(word) for word in words)

    def play(self) -> Result:
        """Runs the job until it ends or reaches the time limit, and judges the outcome."""
        mark = f"{os.getpid()}-{self.directory.name}-{self.model}"
        environment = {**os.environ, faults.MARK: mark, "CPU_NUM": str(self.threads)}
        if self.fault == "reset":
            self.start_port = _free_ports(SERVERS)
            servers = [("127.0.0.1", self.start_port + rank) for rank in range(SERVERS)]
            self.proxy = faults.Proxy(WORKERS, servers)
            for worker, ports in enumerate(self.proxy.ports):
                environment[f"OPENFLEET_CHAOS_SERVERS_{worker}"] = ",".join(f"127.0.0.1:{port}" for port in ports)
        command = self.command()
        (self.directory / "command.txt").write_text(f"cd {self.directory}\n{shlex.join(command)}\n")
        try:
            return self._watch(command, environment, mark)
        finally:
            faults.end_all(mark)
            if self.proxy:
                self.proxy.close()

    def _watch(self, command: list[str], environment: dict[str, str], mark: str) -> Result:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        output = Output(process, self.directory / "output.txt")
        attack = Attack(self, mark, process.pid)
        hung = False
        while process.poll() is None:
            attack.advance(output)
            if time.monotonic() - began > self.place.limit:
                hung = True
                break
            time.sleep(0.01)
        seconds = time.monotonic() - began
        attack.close()
        if hung:
            faults.end_all(mark)
            process.wait()
        output.finish()
        restarts = output.restarts()
        result = self._judge(process.returncode, hung, output)
        if not attack.happened and self.fault != "none":
            result.detail += " (the job ended before the fault)"
        named, restarted = output.after(attack.began, self._victims())
        return dataclasses.replace(result, restarts=restarts, seconds=seconds, named=named, restarted=restarted)

    def _victims(self) -> list[str]:
        worker, server = f"worker {self.worker}", f"server {self.server}"
        victims = {"worker": [worker], "server": [server], "both": [worker, server], "reader": [worker]}
        return victims.get(self.run.what.victim, [])

    def _judge(self, code: int, hung: bool, output: Output) -> Result:
        if hung:
            return Result("HUNG", f"after {self.place.limit:.0f} s; last said: {output.last_words()}")
        if code != 0:
            cause = output.cause()
            return Result("refused", f"exit code {code}: {cause}" if cause else f"exit code {code} WITHOUT A CAUSE")
        if self.model != "counter":
            return Result("exact")
        return self._compare()

    def _compare(self) -> Result:
        export = [str(self.place.binaries / "openfleet"), "export", "final", "--out", "counts.txt"]
        read = subprocess.run(export, cwd=self.directory, capture_output=True, text=True)
        if read.returncode != 0:
            return Result("WRONG", f"exit code 0 without a checkpoint: {read.stderr.strip().splitlines()[:1]}")
        counted = {}
        for line in (self.directory / "counts.txt").read_text().splitlines():
            key, value = line.split("\t")
            counted[int(key)] = -float(value)
        differences = {}
        for key in self.expected.keys() | counted.keys():
            difference = counted.get(key, 0.0) - self.expected.get(key, 0)
            if difference != 0:
                differences[key] = difference
        if not differences:
            return self._compare_steps()
        more = sum(difference for difference in differences.values() if difference > 0)
        fewer = -sum(difference for difference in differences.values() if difference < 0)
        some = ", ".join(f"{key}: {differences[key]:+g}" for key in sorted(differences)[:3])
        whole = sum(self.expected.values())
        text = f"of {whole} occurrences +{more:g} too many, -{fewer:g} lost; {len(differences)} keys ({some})"
        return Result("WRONG", text)

    def _compare_steps(self) -> Result:
        """Compares the parameter `steps` of the form `torch`, which counts the steps of all workers."""
        if self.run.what.form != "torch":
            return Result("exact")
        inspect = [str(self.place.binaries / "openfleet"), "inspect", "final", "--json"]
        ran = subprocess.run(inspect, cwd=self.directory, capture_output=True, text=True, check=True)
        (steps,) = json.loads(ran.stdout)["parameters"]
        # Hybrid and geo divide by the number of workers, for dense parameters only: the scale does not undo that.
        expected = self.steps if self.run.what.mode in ("hybrid", "geo") else WORKERS * self.steps
        if steps["norm"] == expected:
            return Result("exact")
        return Result("WRONG", f"every key has its count, but the parameter `steps` is {steps['norm']} of {expected}")

    def dense_difference(self, other: Path) -> str:
        """Compares the dense parameters of two checkpoints with `openfleet diff`."""
        command = [str(self.place.binaries / "openfleet"), "diff", str(other), "final", "--json"]
        ran = subprocess.run(command, cwd=self.directory, capture_output=True, text=True)
        if ran.returncode != 0:
            return f"cannot be compared: {ran.stderr.strip()}"
        parameters = json.loads(ran.stdout)["parameters"]
        changed = sum(parameter["changed"] for parameter in parameters)
        largest = max((parameter["largest_change"] for parameter in parameters), default=0.0)
        return f"differ in {changed} floats, at most by {largest:.3g}" if changed else "equal to the bit"


class Attack:
    """Applies the fault when the job reaches its step, and the later parts of the fault (SIGCONT, further resets)."""

    def __init__(self, job: Job, mark: str, pid: int) -> None:
        self.job, self.mark, self.pid = job, mark, pid
        self.began: float | None = None
        self.happened = False
        self._later: list[tuple[float, object]] = []
        self._held: list[faults.Process] = []

    def advance(self, output: Output) -> None:
        now = time.monotonic()
        fault = self.job.fault
        if fault == "fail":
            # The job applies this fault itself.
            if self.began is None and (self.job.directory / "failed").exists():
                self.began, self.happened = now, True
        elif self.began is None and fault != "none" and output.progress >= self.job.moment * REPORTS:
            self._begin(fault, now)
        while self._later and self._later[0][0] <= now:
            self._later.pop(0)[1]()

    def _begin(self, fault: str, now: float) -> None:
        job = self.job
        began = time.monotonic()
        if fault == "drop":
            faults.drop_packets(self.pid, job.place.dropper)
        elif fault == "reset":
            both = {"worker": (job.worker, None), "server": (None, job.server), "both": (None, None)}
            whom = both[job.run.what.victim]
            for pause in job.reset_pauses:
                now += pause
                self._later.append((now, lambda: self._reset(whom)))
        else:
            roles = {"worker": ["worker"], "server": ["server"], "both": ["server", "worker"]}[job.run.what.victim]
            ranks = {"worker": job.worker, "server": job.server}
            found = [faults.find(self.mark, role, ranks[role]) for role in roles]
            if None in found:
                return  # one has ended already: nothing is done to this job
            began = time.monotonic()
            self._held = found
            number = {"kill": signal.SIGKILL, "term": signal.SIGTERM}.get(fault, signal.SIGSTOP)
            for process in found:
                process.signal(number)
            if number == signal.SIGSTOP:
                wake = now + float(fault.removeprefix("stop"))
                self._later = [(wake, lambda: [process.signal(signal.SIGCONT) for process in found])]
        self.began = began
        self.happened = fault != "reset"

    def _reset(self, whom: tuple[int | None, int | None]) -> None:
        if self.job.proxy.reset(*whom):
            self.happened = True

    def close(self) -> None:
        for process in self._held:
            process.signal(signal.SIGCONT)
            process.close()


class Output:
    """What a job prints, with the time of each line. Lines of progress are those of the first worker."""

    def __init__(self, process: subprocess.Popen[str], copy: Path) -> None:
        self.lines: list[tuple[float, str]] = []
        self.progress = 0
        self._process, self._copy = process, copy
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        began = time.monotonic()
        with self._copy.open("w") as copy:
            for line in self._process.stdout:
                now = time.monotonic()
                self.lines.append((now, line.rstrip()))
                copy.write(f"{now - began:8.3f} {line}")
                copy.flush()
                if re.match(r"\[worker 0\].*(epoch \d+/\d+.*samples/s|progress: )", line):
                    self.progress += 1

    def finish(self) -> None:
        self._thread.join(timeout=5)

    def restarts(self) -> int:
        numbers = [int(found[1]) for _, line in self.lines if (found := re.search(r"restart (\d+)", line))]
        return max(numbers, default=0)

    def cause(self) -> str:
        """The line that says why the job ended, if there is one."""
        words = re.compile(r"error|was killed|exited with|ended|timed? ?out|failed", re.IGNORECASE)
        own = [line for _, line in self.lines if not line.startswith("[") and words.search(line)]
        # A line about a restart does not say why the job ended.
        return next((line for line in own if not re.search(r"restart \d+", line)), "")

    def last_words(self) -> str:
        return self.lines[-1][1][:150] if self.lines else "nothing"

    def after(self, fault: float | None, victims: list[str]) -> tuple[float | None, float | None]:
        """Seconds from the fault to the first line that names a victim, and to the first line of a restart."""
        if fault is None:
            return None, None
        later = [(at - fault, line) for at, line in self.lines if at >= fault]
        restarted = next((at for at, line in later if re.search(r"restart \d+", line)), None)
        # Lines of a process begin with its name. That name does not count, nor does what the victim itself says.
        others = [(at, line) for at, line in later if not line.startswith(tuple(f"[{victim}]" for victim in victims))]
        words = [(at, re.sub(r"^\[[^]]*\]", "", line)) for at, line in others]
        named = next((at for at, line in words if any(victim in line for victim in victims)), None)
        return named, restarted


def _free_ports(count: int) -> int:
    """Returns the first of `count` adjacent free ports of loopback, below the range of ephemeral ports."""
    first = random.randrange(10_000, 30_000)
    for port in range(first, first + 2000, count):
        with contextlib.ExitStack() as held:
            try:
                for each in range(count):
                    held.enter_context(socket.create_server(("127.0.0.1", port + each)))
            except OSError:
                continue
            return port
    raise OSError("found no free ports on loopback")
