"""Runs one command and measures its process tree: seconds, CPU seconds, memory, bytes over loopback.

    python comparisons/measure.py RESULT.json [--timeout SECONDS] [--no-namespace] -- COMMAND...

It is a program of its own because what it changes would remain with its caller: it moves into a network namespace,
so that the counters of `lo` count this command alone, and it becomes the parent of every process that loses its
own. It knows neither OpenFleet nor a peer. Only processes that it started are ended, by their id.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_CHILD_SUBREAPER = 36
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
PAGE = resource.getpagesize()


def enter_namespace() -> bool:
    """Moves this process into a network namespace whose only device is `lo`. False if the machine does not allow it."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET) != 0:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            return False
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
    return True


def loopback_bytes() -> int:
    """Bytes that `lo` of this namespace has received, with TCP headers and acknowledgements."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[0])
    return 0


def tree(root: int) -> dict[int, int]:
    """Pid -> resident bytes of the descendants of `root`."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        # A process may end between the listing and the reading.
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append((int(entry), int(fields[21]) * PAGE))
    found: dict[int, int] = {}
    open_pids = [root]
    while open_pids:
        for pid, resident in children.get(open_pids.pop(), []):
            found[pid] = resident
            open_pids.append(pid)
    return found


def busy_seconds() -> float:
    """CPU seconds that all programs of the machine have used, and that the hypervisor gave to others."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def used_seconds(who: int) -> float:
    """CPU seconds of this process, or of the children that it has waited for."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def end(pids: list[int]) -> None:
    """Kills processes of the tree. Those that have ended already are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def measure(command: list[str], timeout: float, namespace: bool) -> dict:
    """Runs the command until all of its processes have ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    alone = namespace and enter_namespace()
    me, bytes_before, started = os.getpid(), loopback_bytes(), time.monotonic()
    busy_before, own_before = busy_seconds(), used_seconds(resource.RUSAGE_SELF)
    child = subprocess.Popen(command)
    peak, seconds, timed_out = 0, None, False
    while True:
        now = tree(me)
        peak = max(peak, sum(now.values()))
        if child.poll() is not None:
            seconds = seconds or time.monotonic() - started
            # Grandchildren that outlived the command: none of the commands means to leave any.
            end([pid for pid in now if pid != child.pid])
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not tree(me):
                break
        elif time.monotonic() - started > timeout:
            timed_out = True
            end(list(now))
        time.sleep(0.05)
    cpu_seconds = used_seconds(resource.RUSAGE_CHILDREN)
    own = used_seconds(resource.RUSAGE_SELF) - own_before
    others = busy_seconds() - busy_before - cpu_seconds - own
    return {
        "exit_code": child.returncode,
        "timed_out": timed_out,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        # Cores that other programs used meanwhile: above a few tenths, the figures are worth little.
        "other_cores": max(0.0, others) / (time.monotonic() - started),
        "peak_rss_bytes": peak,
        # Without a namespace, the counters contain what other programs of the machine have sent.
        "loopback_bytes": loopback_bytes() - bytes_before if alone else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--no-namespace", action="store_true")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    measured = measure(args.command, args.timeout, not args.no_namespace)
    args.result.write_text(json.dumps(measured))
    sys.exit(0 if measured["exit_code"] == 0 and not measured["timed_out"] else 1)


if __name__ == "__main__":
    main()
