"""A PyTorch CTR-DNN whose embedding is in PyTorch or in a table of OpenFleet, in turns.

    python comparisons/torch_embeddings.py [--rows 100000] [--ids 1000000] [--rounds 3]      # needs torch and the wheel

Same shapes and rules on both sides: 26 slots share one table of 10 floats, beside 13 numbers, 400-400-400, batches of
512, Adam (SparseAdam on the table). Prints samples/s of one process with each, of two workers with two servers (async),
and the parts of a step; "rows" is the table alone, with one server and one worker, once all rows exist. All are medians
over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLOTS, DENSE, DIM, BATCH = 26, 13, 10, 512


def train(options: argparse.Namespace) -> None:
    """Trains on one side and prints what it measured, as JSON. With servers, one line a worker."""
    import torch
    from torch import nn
    from torch.nn import functional

    from openfleet import fleet, static
    from openfleet.torch import Embedding

    torch.set_num_threads(1 if options.side in ("servers", "rows") else 2)
    torch.manual_seed(0)
    sizes = [SLOTS * DIM + DENSE, 400, 400, 400]
    layers = [layer for i, o in zip(sizes, sizes[1:]) for layer in (nn.Linear(i, o), nn.ReLU())]
    model = nn.Module()
    model.layers = nn.Sequential(*layers, nn.Linear(400, 1))
    if options.side == "torch":
        model.table = nn.Embedding(options.ids + 1, DIM, sparse=True)
        nn.init.normal_(model.table.weight, std=0.01)
        rules = [
            torch.optim.Adam(model.layers.parameters(), lr=1e-3),
            torch.optim.SparseAdam([model.table.weight], lr=1e-3),
        ]
    else:
        fleet.init()
        model.table = Embedding(DIM, initializer=static.initializer.Normal(0.0, 0.01))
        rule = torch.optim.Adam(model.layers.parameters(), lr=1e-3)
        rules = [fleet.distributed_optimizer(rule, model=model)]
        if fleet.is_server():
            fleet.init_server()
            return fleet.run_server()
        fleet.init_worker()
    draw = torch.Generator().manual_seed(fleet.worker_index() if options.side == "servers" else 0)
    # Few ids are frequent and many are rare, as in click logs.
    ids = (torch.rand(options.rows, SLOTS, generator=draw) ** 4 * options.ids).long()
    dense = torch.rand(options.rows, DENSE, generator=draw)
    label = (torch.rand(options.rows, generator=draw) < 0.25).float()
    if options.side == "rows":
        # All ids are there twice: in the second half their rows exist.
        ids[options.rows // 2 :] = ids[: options.rows - options.rows // 2]
    times: dict[str, list[float]] = {"forward": [], "backward": [], "step": []}
    speeds = []
    for start in range(0, options.rows - BATCH + 1, BATCH):
        began = time.perf_counter()
        part = slice(start, start + BATCH)
        vectors = model.table(ids[part]).flatten(1)
        if options.side == "rows":
            loss = vectors.mean()
        else:
            x = torch.cat([vectors, dense[part]], dim=1)
            loss = functional.binary_cross_entropy_with_logits(model.layers(x).squeeze(1), label[part])
        computed = time.perf_counter()
        for each in rules:
            each.zero_grad()
        loss.backward()
        pushed = time.perf_counter()
        for each in rules:
            each.step()
        ended = time.perf_counter()
        speeds.append(BATCH / (ended - began))
        times["forward"].append(computed - began)
        times["backward"].append(pushed - computed)
        times["step"].append(ended - pushed)
    first = len(speeds) // (2 if options.side == "rows" else 10)
    milliseconds = {name: round(1e3 * statistics.median(seconds[first:]), 3) for name, seconds in times.items()}
    cpu = time.process_time() / (len(speeds) * BATCH) * 1e6
    print("measured", json.dumps({"speed": statistics.median(speeds[first:]), "cpu": cpu, **milliseconds}))
    if options.side != "torch":
        fleet.stop_worker()


def measured(command: list[str]) -> list[dict[str, float]]:
    """Runs a side in a directory of its own and returns what its workers measured."""
    with tempfile.TemporaryDirectory() as directory:
        ran = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(ran.stdout + ran.stderr)
    return [json.loads(line.split("measured ")[1]) for line in ran.stdout.splitlines() if "measured " in line]


def main() -> None:
    """Measures all sides in turns, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=["torch", "ours", "servers", "rows"])
    options = parser.parse_args()
    if options.side:
        return train(options)
    script = [str(Path(__file__).resolve()), f"--rows={options.rows}", f"--ids={options.ids}"]
    launch = [sys.executable, "-m", "openfleet.launch"]
    sides = {
        "torch": [sys.executable, *script, "--side=torch"],
        "ours": [sys.executable, *script, "--side=ours"],
        "servers": [*launch, "--server_num=2", "--worker_num=2", *script, "--side=servers"],
        "rows": [*launch, "--server_num=1", "--worker_num=1", *script, "--side=rows"],
    }
    os.environ.pop("OMP_NUM_THREADS", None)
    rounds: dict[str, list[list[dict[str, float]]]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, command in sides.items():
            rounds[side].append(measured(command))
    print("| | samples/s | forward ms | backward ms | step ms | CPU s per million |\n|" + " --- |" * 6)
    for side, runs in rounds.items():
        speed = statistics.median(sum(worker["speed"] for worker in run) for run in runs)
        parts = [statistics.median(run[0][part] for run in runs) for part in ("forward", "backward", "step")]
        cpu = statistics.median(run[0]["cpu"] for run in runs)
        print(f"| {side} | {speed:,.0f} | {' | '.join(f'{part:.2f}' for part in parts)} | {cpu:.1f} |")


main()
