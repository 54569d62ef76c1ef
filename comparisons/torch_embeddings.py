"""A PyTorch CTR-DNN whose embedding is in PyTorch or in a table of OpenFleet, in turns.

    python comparisons/torch_embeddings.py [--rows 100000] [--ids 1000000] [--rounds 3]      # needs torch and the wheel

Same shapes and rules on all sides: 26 slots share one table of 10 floats, beside 13 numbers, 400-400-400, batches of
512, Adam (SparseAdam on the table). Prints samples/s of one process with each, of two workers with two servers (async;
"ahead": with `prefetch`; "rpc": the parameter server of PyTorch's tutorials, `ctr_dnn_torch_rpc.py`), the parts of a
step, the CPU seconds of a worker, and the shares of pulls and pushes in its time. "rows" is the table alone, with one
server and one worker, once all rows exist. All are medians over the rounds.
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
    from openfleet.torch import Embedding, prefetch

    torch.set_num_threads(2 if options.side in ("torch", "ours") else 1)
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
    draw = torch.Generator().manual_seed(fleet.worker_index() if options.side in ("servers", "ahead") else 0)
    # Few ids are frequent and many are rare, as in click logs.
    ids = (torch.rand(options.rows, SLOTS, generator=draw) ** 4 * options.ids).long()
    dense = torch.rand(options.rows, DENSE, generator=draw)
    label = (torch.rand(options.rows, generator=draw) < 0.25).float()
    if options.side == "rows":
        # All ids are there twice: in the second half their rows exist.
        ids[options.rows // 2 :] = ids[: options.rows - options.rows // 2]
    parts = ("forward", "backward", "step", "pull", "push")
    times: dict[str, list[float]] = {part: [] for part in parts}

    def timed(part, call):
        def wrapped(*given):
            began = time.perf_counter()
            result = call(*given)
            times[part].append(time.perf_counter() - began)
            return result

        return wrapped

    if options.side != "torch":
        tables = rules[0].tables
        tables.look_up, tables.push = timed("pull", tables.look_up), timed("push", tables.push)
    batches = [slice(start, start + BATCH) for start in range(0, options.rows - BATCH + 1, BATCH)]
    loader = prefetch(batches, {model.table: lambda part: ids[part]}) if options.side == "ahead" else batches
    speeds, began, cpu = [], time.perf_counter(), time.process_time()
    for part in loader:
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
        began = ended
    first = len(speeds) // (2 if options.side == "rows" else 10)
    milliseconds = {part: round(1e3 * statistics.median(times[part][first:] or [0.0]), 3) for part in parts}
    cpu = (time.process_time() - cpu) / (len(speeds) * BATCH) * 1e6
    print("measured", json.dumps({"speed": statistics.median(speeds[first:]), "cpu": cpu, **milliseconds}))
    if options.side != "torch":
        fleet.stop_worker()


def measured(command: list[str]) -> list[dict[str, float]]:
    """Runs a side in a directory of its own and returns what its workers measured."""
    with tempfile.TemporaryDirectory() as directory:
        ran = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(ran.stdout + ran.stderr)
    if "samples_per_second" in ran.stdout:
        # The script of `torch.distributed.rpc` measures both trainers together.
        return [{"speed": json.loads(ran.stdout.splitlines()[-1])["samples_per_second"]}]
    return [json.loads(line.split("measured ")[1]) for line in ran.stdout.splitlines() if "measured " in line]


def main() -> None:
    """Measures all sides in turns, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=["torch", "ours", "servers", "ahead", "rows"])
    options = parser.parse_args()
    if options.side:
        return train(options)
    data = tempfile.TemporaryDirectory()
    amounts = [
        f"--rows={2 * options.rows}",
        "--test-rows=1000",
        f"--ids={options.ids}",
        "--seed=1",
        f"--out={data.name}",
    ]
    subprocess.run(
        [sys.executable, "-m", "openfleet", "gen", "criteo", *amounts], check=True, stdout=subprocess.DEVNULL
    )
    script = [str(Path(__file__).resolve()), f"--rows={options.rows}", f"--ids={options.ids}"]
    launch = [sys.executable, "-m", "openfleet.launch"]
    sides = {
        "torch": [sys.executable, *script, "--side=torch"],
        "ours": [sys.executable, *script, "--side=ours"],
        "servers": [*launch, "--server_num=2", "--worker_num=2", *script, "--side=servers"],
        "ahead": [*launch, "--server_num=2", "--worker_num=2", *script, "--side=ahead"],
        "rpc": [sys.executable, str(Path(__file__).resolve().with_name("ctr_dnn_torch_rpc.py")), data.name],
        "rows": [*launch, "--server_num=1", "--worker_num=1", *script, "--side=rows"],
    }
    os.environ.pop("OMP_NUM_THREADS", None)
    rounds: dict[str, list[list[dict[str, float]]]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, command in sides.items():
            rounds[side].append(measured(command))
    columns = ["forward ms", "backward ms", "step ms", "CPU s per million", "pull", "push"]
    print(f"| | samples/s | {' | '.join(columns)} |\n|" + " --- |" * (len(columns) + 2))
    for side, runs in rounds.items():
        speed = statistics.median(sum(worker["speed"] for worker in run) for run in runs)
        cells = ["", "", "", "", "", ""]
        if side != "rpc":
            found = {what: statistics.median(run[0][what] for run in runs) for what in runs[0][0]}
            whole = found["forward"] + found["backward"] + found["step"]
            cells = [f"{found[part]:.2f}" for part in ("forward", "backward", "step")] + [f"{found['cpu']:.1f}"]
            cells += [f"{found[part] / whole:.0%}" for part in ("pull", "push")]
        print(f"| {side} | {speed:,.0f} | {' | '.join(cells)} |")


main()
