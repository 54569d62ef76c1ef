"""Faults of a running job: signals, reset connections, dropped packets.

Processes are found in `/proc` by a mark in their environment, which all processes of a run inherit. Signals go through
pidfds, so that a process that reuses a pid is never hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import threading
from pathlib import Path

MARK = "OPENFLEET_CHAOS_RUN"


class Process:
    """A process of a run; signals to one that has ended do nothing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    def close(self) -> None:
        os.close(self.descriptor)


def _environment(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def processes_of(mark: str) -> list[int]:
    """Returns every live process with this mark, whatever its parent is now."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and _environment(pid).get(MARK) == mark]


def find(mark: str, role: str, rank: int) -> Process | None:
    """The process of a role and rank: not its children, which have the same environment."""

    def matches(pid: int) -> bool:
        environment = _environment(pid)
        return (
            environment.get(MARK) == mark
            and environment.get("OPENFLEET_ROLE") == role
            and environment.get("OPENFLEET_RANK") == str(rank)
        )

    for pid in processes_of(mark):
        if matches(pid) and not matches(_parent(pid)):
            with contextlib.suppress(ProcessLookupError):
                return Process(pid)
    return None


def end_all(mark: str) -> int:
    """Kills every process with this mark. Returns how many there were."""
    pids = processes_of(mark)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            process = Process(pid)
            # It still has the mark, so it is not a new process with a reused pid.
            if _environment(pid).get(MARK) == mark:
                process.signal(signal.SIGKILL)
            process.close()
    return len(pids)


class Proxy:
    """Carries the connections of workers to servers, each worker through ports of its own, and can reset them.

    A reset is a TCP RST to both ends (`SO_LINGER` of 0 s), with whatever was in flight lost.
    """

    def __init__(self, worker_count: int, servers: list[tuple[str, int]]) -> None:
        self._lock = threading.Lock()
        self._pairs: set[tuple[int, int, socket.socket, socket.socket]] = set()
        self._listeners: list[socket.socket] = []
        self.ports: list[list[int]] = []
        for worker in range(worker_count):
            ports = []
            for server, address in enumerate(servers):
                listener = socket.create_server(("127.0.0.1", 0))
                self._listeners.append(listener)
                ports.append(listener.getsockname()[1])
                threading.Thread(target=self._accept, args=(listener, worker, server, address), daemon=True).start()
            self.ports.append(ports)

    def reset(self, worker: int | None, server: int | None) -> int:
        """Resets the connections of a worker, of a server, or of both; None is all of them. Returns how many."""
        with self._lock:
            hit = [pair for pair in self._pairs if worker in (None, pair[0]) and server in (None, pair[1])]
            for pair in hit:
                self._break(pair)
        return len(hit)

    def close(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.reset(None, None)

    def _accept(self, listener: socket.socket, worker: int, server: int, address: tuple[str, int]) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            _abort_on_close(near)
            try:
                far = socket.create_connection(address, timeout=5)
            except OSError:
                near.close()  # the server is not listening at the moment: the worker sees a reset
                continue
            far.settimeout(None)
            _abort_on_close(far)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (worker, server, near, far)
            with self._lock:
                self._pairs.add(pair)
            threading.Thread(target=self._carry, args=(pair,), daemon=True).start()

    def _carry(self, pair: tuple[int, int, socket.socket, socket.socket]) -> None:
        _, _, near, far = pair
        other = {near: far, far: near}
        with selectors.DefaultSelector() as selector:
            for end in other:
                selector.register(end, selectors.EVENT_READ)
            with contextlib.suppress(OSError, ValueError):
                while selector.get_map():
                    for key, _ in selector.select():
                        taken = key.fileobj.recv(1 << 16)
                        if taken:
                            other[key.fileobj].sendall(taken)
                        else:
                            # Passes on the orderly end of one direction; the other direction may continue.
                            selector.unregister(key.fileobj)
                            other[key.fileobj].shutdown(socket.SHUT_WR)
        with self._lock:
            self._pairs.discard(pair)
        near.close()
        far.close()

    def _break(self, pair: tuple[int, int, socket.socket, socket.socket]) -> None:
        for end in pair[2:]:
            # Connecting a TCP socket to nowhere sends the RST at once, although another thread waits on the socket.
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                _disconnect(end)


def _abort_on_close(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _disconnect(end: socket.socket) -> None:
    unspecified = struct.pack("H14x", socket.AF_UNSPEC)
    ctypes.CDLL(None, use_errno=True).connect(end.fileno(), unspecified, len(unspecified))


NAMESPACE = ("unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Starts a command in its own network namespace with loopback, and keeps the pid."""

_DROPPERS = (
    "iptables -A INPUT -i lo -p tcp -m statistic --mode random --probability 0.05 -j DROP",
    "tc qdisc add dev lo root netem loss 5%",
)


def dropper() -> tuple[list[str], str]:
    """The command that drops 5 % of the packets on loopback, or an empty one with the reason why there is none."""
    if os.geteuid() != 0:
        return [], "not root"
    missing = [program for program in ("unshare", "nsenter", "ip") if shutil.which(program) is None]
    if missing:
        return [], f"no `{missing[0]}`"
    reasons = []
    for command in map(shlex.split, _DROPPERS):
        program = command[0]
        if shutil.which(program) is None:
            reasons.append(f"no `{program}`")
            continue
        tried = subprocess.run([*NAMESPACE, *command], capture_output=True, text=True)
        if tried.returncode == 0:
            return command, ""
        reasons.append(f"`{program}`: {tried.stderr.strip().splitlines()[0]}")
    return [], ", ".join(reasons)


def drop_packets(pid: int, command: list[str]) -> None:
    """Starts to drop packets in the network namespace of a process."""
    subprocess.run(["nsenter", "--target", str(pid), "--net", *command], check=True, capture_output=True)
