"""What the Python front door costs: the same training from Python and by `openfleet train`, in turns, as ratios.

    python comparisons/python_front.py                        # with the wheel of a release build installed

Each side is judged by its best round; the rounds alternate, so that a noisy machine disturbs all of them alike.
"""

from __future__ import annotations

import argparse
import glob
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from openfleet import models, static
from openfleet.dataset import InMemoryDataset

SLOTS, DENSE = 26, 13


def network(seed: int):
    """The CTR-DNN of `openfleet train --model ctr_dnn`."""
    main, startup = static.Program(), static.Program()
    startup.random_seed = main.random_seed = seed
    with static.program_guard(main, startup), static.unique_name.guard():
        slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(1, SLOTS + 1)]
        dense, label = static.data("dense", [None, DENSE]), static.data("label", [None, 1], "int64")
        model = models.ctr_dnn(slots, dense, label)
        static.optimizer.Adam(1e-3).minimize(model.loss)
    return main, startup, model, [label, dense, *slots]


def by_command(files: str, threads: int) -> float:
    """Samples a second of `openfleet train`, which counts training alone."""
    command = [sys.executable, "-m", "openfleet", "train", "--model=ctr_dnn", f"--train={files}", "--in-memory"]
    command += ["--batch=512", f"--threads={threads}", "--quiet", "--json"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(out.strip().splitlines()[-1])["samples_per_second"]


def by_dataset(files: str, threads: int) -> float:
    """Samples a second of `exe.train_from_dataset`."""
    main, startup, model, fields = network(1)
    with static.scope_guard(static.Scope()):
        exe, dataset = static.Executor(), InMemoryDataset()
        exe.run(startup)
        dataset.init(batch_size=512, thread_num=threads, use_var=fields)
        dataset.set_filelist(sorted(glob.glob(files)))
        dataset.load_into_memory()
        dataset.local_shuffle()
        return exe.train_from_dataset(main, dataset, print_period=0).samples_per_second


def by_feeds(batches: list[dict]) -> float:
    """Samples a second of `exe.run(feed=...)`, one batch at a time, with arrays that are there already."""
    main, startup, model, _ = network(1)
    with static.scope_guard(static.Scope()):
        exe = static.Executor()
        exe.run(startup)
        exe.run(main, feed=batches[0], fetch_list=[model.loss])
        began = time.perf_counter()
        for batch in batches:
            exe.run(main, feed=batch, fetch_list=[model.loss])
        return len(batches) * 512 / (time.perf_counter() - began)


def arrays(files: str) -> list[dict]:
    """The rows as feeds of 512: one array a field."""
    batches, rows = [], []
    for path in sorted(glob.glob(files)):
        for line in Path(path).read_text().splitlines():
            rows.append([float(word) for word in line.split()])
            if len(rows) == 512:
                table = np.array(rows)  # every slot of these files has one id, so every line has as many words
                feed = {"label": table[:, 1:2].astype("int64"), "dense": table[:, 3 : 3 + DENSE].astype("float32")}
                for slot in range(SLOTS):
                    feed[f"C{slot + 1}"] = table[:, [4 + DENSE + 2 * slot]].astype("int64")
                batches.append(feed)
                rows = []
    return batches


def import_seconds() -> float:
    """Of `import openfleet` and all its modules, less what starting Python and importing NumPy takes."""
    code = "import time, numpy; t = time.perf_counter(); import openfleet, openfleet.static, openfleet.fleet; "
    code += "import openfleet.dataset, openfleet.models; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "openfleet", "gen", "criteo", f"--rows={args.rows}", "--test-rows=10"]
        subprocess.run([*command, "--formats=multislot", f"--out={directory}/data"], check=True, capture_output=True)
        files = f"{directory}/data/train/*.txt"
        batches = arrays(files)
        sides = {
            "openfleet train, 1 thread": lambda: by_command(files, 1),
            "train_from_dataset, 1 thread": lambda: by_dataset(files, 1),
            "exe.run(feed), batch 512": lambda: by_feeds(batches),
            "openfleet train, 2 threads": lambda: by_command(files, 2),
            "train_from_dataset, 2 threads": lambda: by_dataset(files, 2),
        }
        best = dict.fromkeys(sides, 0.0)
        for _ in range(args.rounds):
            for name, side in sides.items():
                best[name] = max(best[name], side())
    for name, rate in best.items():
        against = "openfleet train, 2 threads" if "2 threads" in name else "openfleet train, 1 thread"
        print(f"{name:32} {rate:10,.0f} samples/s   {rate / best[against]:.3f} of {against}")
    print(f"import of openfleet              {min(import_seconds() for _ in range(5)):10.3f} s after NumPy")


if __name__ == "__main__":
    main()
