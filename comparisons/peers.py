"""The other systems that `compare.py` runs, each in a virtual environment of its own.

A peer that cannot be installed, or whose module does not load, is skipped with the reason; the other peers still
run. This file knows packages and versions, and no case.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """A system, the packages it needs, and the code that prints its version."""

    title: str
    installs: tuple[tuple[str, ...], ...]
    probe: str


PEERS = {
    "torch": Peer("PyTorch", (("torch", "numpy"),), "import torch; print(torch.__version__)"),
    "torchrec": Peer(
        "torchrec",
        (
            # torchrec requires the package for GPUs, which overwrites the files of the one for CPUs: hence `--no-deps`.
            # The libraries of fbgemm 1.9 load only into the version of torch that they were built with.
            ("torch==2.14.*", "fbgemm-gpu-cpu==1.9.*", "numpy"),
            ("pyre-extensions", "tensordict", "torchmetrics==1.0.3", "tqdm"),
            ("--no-deps", "torchrec==1.9.*"),
        ),
        "import torch, torchrec; print(f'{torchrec.__version__} (PyTorch {torch.__version__})')",
    ),
    "paddle": Peer(
        "PaddlePaddle",
        # The last wheel with a parameter server. Its strategies read a module that only protobuf 4 has.
        (("paddlepaddle==2.6.2", "numpy<2", "protobuf>=4.21,<5", "setuptools"),),
        "import paddle; print(paddle.__version__)",
    ),
    "gensim": Peer("gensim", (("gensim",),), "import gensim; print(gensim.__version__)"),
}


@dataclass(frozen=True)
class Ready:
    """An installed peer."""

    python: Path
    version: str


@dataclass(frozen=True)
class Skipped:
    """A peer that is left out, and why."""

    reason: str


def prepare(name: str, venvs: Path, install: bool) -> Ready | Skipped:
    """Uses the environment `venvs/name`, or creates it."""
    peer, environment = PEERS[name], venvs / name
    python = environment / "bin" / "python"
    found = probe(peer, python)
    if isinstance(found, Ready) or not install:
        return found
    print(f"installing {peer.title} into {environment}", flush=True)
    steps = [[sys.executable, "-m", "venv", str(environment)]]
    steps += [[str(python), "-m", "pip", "install", "--quiet", *packages] for packages in peer.installs]
    for step in steps:
        ran = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ran.returncode != 0:
            return Skipped(f"`{' '.join(step[1:])}` failed: {last_line(ran.stdout)}")
    return probe(peer, python)


def probe(peer: Peer, python: Path) -> Ready | Skipped:
    """Loads the peer's module."""
    if not python.exists():
        return Skipped("it is not installed")
    ran = subprocess.run([str(python), "-c", peer.probe], capture_output=True, text=True)
    if ran.returncode != 0:
        return Skipped(f"its module does not load: {last_line(ran.stderr)}")
    return Ready(python, last_line(ran.stdout))


def last_line(text: str) -> str:
    """The last line that says something; pip's remarks about its own version do not."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "[notice]" not in line]
    return lines[-1] if lines else "no output"
