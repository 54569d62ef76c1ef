"""The CTR-DNN without servers: two ranks beside two threads of one process, and beside DDP of PyTorch, in turns.

    cargo build --release
    python comparisons/collective.py demo-data                # `make demo` generates it; needs torch, numpy

All have the same model, optimizer and rows per step of each rank or thread (`ctr_dnn_torch.py`); one pass. Each side is
judged by its best round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def openfleet(args: argparse.Namespace, launcher: list[str], batch: int, options: list[str]) -> dict:
    """The summary that `openfleet train` prints."""
    files = [
        "--train",
        f"{args.data}/train/*.txt",
        "--test",
        f"{args.data}/test/*.txt",
        "--batch-size",
        str(batch),
    ]
    command = [*launcher, "openfleet", "train", "--model", "ctr_dnn", *files, *options, "--in-memory", "--json"]
    path = os.pathsep.join([str(args.binaries), os.environ["PATH"]])
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path})
    line = [line for line in run.stdout.splitlines() if '"samples_per_second"' in line][-1]
    return json.loads(line[line.index("{") :])


def ddp(args: argparse.Namespace) -> dict:
    """Trains with DDP in two processes of one thread."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [__file__, str(args.data), "--rank", "--batch", str(args.batch)]
    run = subprocess.run([*launcher, *words], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def ddp_rank(args: argparse.Namespace) -> None:
    """One rank of DDP."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from ctr_dnn_torch import CtrDnn, exact_auc, read

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    test = read(f"{args.data}/test/*.txt")
    label, dense, ids = read(f"{args.data}/train/*.txt")
    model = CtrDnn(int(max(ids.max(), test[2].max())))
    label, dense, ids = label[rank::ranks].contiguous(), dense[rank::ranks].contiguous(), ids[rank::ranks].contiguous()
    trained = torch.nn.parallel.DistributedDataParallel(model)
    table = [model.table.weight]
    rest = [parameter for parameter in model.parameters() if parameter is not model.table.weight]
    optimizers = [torch.optim.SparseAdam(table, 1e-3), torch.optim.Adam(rest, 1e-3)]
    steps = len(label) // args.batch
    dist.barrier()
    started = time.perf_counter()
    for step in range(steps):
        rows = slice(step * args.batch, (step + 1) * args.batch)
        loss = F.cross_entropy(trained(dense[rows], ids[rows]), label[rows])
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    dist.barrier()
    seconds = time.perf_counter() - started
    if rank == 0:
        with torch.no_grad():
            scores = torch.softmax(model(test[1], test[2]), 1)[:, 1]
        auc = exact_auc(test[0].numpy(), scores.numpy())
        print(json.dumps({"samples_per_second": steps * args.batch * ranks / seconds, "test_auc": auc}))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch", type=int, default=512, help="rows per step of each rank or thread")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binaries", type=Path, default=ROOT / "target" / "release")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        ddp_rank(args)
        return
    fleetrun = [str(args.binaries / "fleetrun"), "--log-dir", str(args.data / "log"), "--nproc_per_node=2"]
    sides = {
        "local, two threads": lambda: openfleet(args, [], 2 * args.batch, ["--threads", "2"]),
        "collective, two ranks": lambda: openfleet(args, fleetrun, args.batch, ["--mode", "collective"]),
    }
    try:
        import torch  # noqa: F401

        sides["PyTorch DDP, two ranks"] = lambda: ddp(args)
    except ImportError:
        print("torch is not installed: DDP is left out")
    best: dict[str, dict] = {}
    for _ in range(args.rounds):
        for name, side in sides.items():
            got = side()
            if name not in best or got["samples_per_second"] > best[name]["samples_per_second"]:
                best[name] = got
    for name, got in best.items():
        print(f"{name}: {got['samples_per_second']:,.0f} samples/s, test AUC {got['test_auc']:.4f}")
    rate = {name: got["samples_per_second"] for name, got in best.items()}
    print(f"ranks / threads {rate['collective, two ranks'] / rate['local, two threads']:.2f}")
    if "PyTorch DDP, two ranks" in rate:
        print(f"ranks / DDP {rate['collective, two ranks'] / rate['PyTorch DDP, two ranks']:.2f}")


if __name__ == "__main__":
    main()
