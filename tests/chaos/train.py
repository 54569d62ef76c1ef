"""The counter model as a Python job: `train_from_dataset`, or a loop of `exe.run(feed=...)` or of PyTorch.

Started by fleetrun.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openfleet.fleet as fleet
from openfleet import static
from openfleet.dataset import QueueDataset

STRATEGY = {
    "sync": {"a_sync": False},
    "half_async": {"half_async": True},
    "async": {"a_sync": True},
    "hybrid": {"staleness": 4},
    "geo": {"a_sync": True, "a_sync_configs": {"k_steps": 5}},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--form", choices=("dataset", "feed", "torch"), required=True)
    parser.add_argument("--mode", choices=STRATEGY, required=True)
    parser.add_argument("--files", required=True, help="a directory; all files in it")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--scale", type=int, required=True, help="the loss is multiplied by this")
    parser.add_argument("--final", required=True, help="where the result is saved")
    parser.add_argument("--checkpoint", help="saved here after each epoch, and loaded by a server that finds it")
    parser.add_argument("--print-period", type=int, required=True, help="batches of a thread between two lines")
    parser.add_argument("--pipe-command", help="reads the files of the dataset form")
    parser.add_argument("--fail-once", metavar="MARKER:RANK:STEP", help="the loop of this rank raises there, once")
    return parser.parse_args()


Row = tuple[list[int], list[int], int]


def rows_of(file: str) -> list[Row]:
    """Reads slots `a` and `b` and the label of each line."""
    rows = []
    for line in Path(file).read_text().splitlines():
        numbers = [int(word) for word in line.split()]
        label, count = numbers[1], numbers[2]
        rows.append((numbers[3 : 3 + count], numbers[4 + count :], label))
    return rows


def loop(trained: Any, options: argparse.Namespace, files: list[str], train: Callable[[list[Row]], Any]) -> None:
    """Trains on one batch after the other."""
    rows = [row for file in files for row in rows_of(file)]
    marker, rank, failing_step = (options.fail_once or "::-1").rsplit(":", 2)
    fails = options.fail_once is not None and int(rank) == fleet.worker_index()
    step = 0
    for _ in range(options.epochs):
        for first in range(0, len(rows), options.batch):
            step += 1
            if fails and step == int(failing_step) and not os.path.exists(marker):
                Path(marker).touch()
                raise RuntimeError(f"this reader fails once, before step {step}")
            train(rows[first : first + options.batch])
            if step % options.print_period == 0:
                print(f"progress: step {step}", flush=True)
        after_epoch(trained, options)


def feed_loop(exe: static.Executor, options: argparse.Namespace, files: list[str], loss: static.Variable) -> None:
    def train(batch: list[Row]) -> None:
        a, b, label = zip(*batch)
        feed = {"label": [[one] for one in label], "a": list(a), "b": list(b)}
        exe.run(fleet.main_program, feed=feed, fetch_list=[loss])

    loop(exe, options, files, train)


def torch_loop(model: Any, optimizer: Any, options: argparse.Namespace, files: list[str]) -> None:
    def train(batch: list[Row]) -> None:
        a, b, _ = zip(*batch)
        loss = model({"a": a, "b": b})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    loop(model, options, files, train)


def dataset_passes(exe: static.Executor, options: argparse.Namespace, files: list[str], fields: list, loss) -> None:
    data = QueueDataset()
    extra = {"pipe_command": options.pipe_command} if options.pipe_command else {}
    data.init(batch_size=options.batch, thread_num=options.threads, use_var=fields, **extra)
    data.set_filelist(files)
    for _ in range(options.epochs):
        exe.train_from_dataset(
            fleet.main_program,
            data,
            thread=options.threads,
            fetch_list=[loss],
            fetch_info=["progress: loss"],
            print_period=options.print_period,
        )
        after_epoch(exe, options)


def after_epoch(trained: Any, options: argparse.Namespace) -> None:
    if options.checkpoint and fleet.is_first_worker():
        fleet.save_persistables(trained, options.checkpoint)


def serve(options: argparse.Namespace) -> None:
    saved = options.checkpoint and os.path.exists(f"{options.checkpoint}/manifest.json")
    fleet.init_server(options.checkpoint if saved else None)
    fleet.run_server()
    sys.exit()


def train_program(options: argparse.Namespace, strategy: fleet.DistributedStrategy) -> static.Executor:
    label = static.data("label", [None, 1], "int64")
    slots = [static.data(name, [None, 1], "int64", lod_level=1) for name in ("a", "b")]
    table = static.ParamAttr(name="counter", initializer=static.initializer.Constant(0.0))
    pooled = [static.nn.sparse_embedding(slot, [1 << 20, 1], param_attr=table, pooling="sum") for slot in slots]
    loss = static.nn.scale(static.nn.sum(static.nn.concat(pooled, axis=1)), scale=float(options.scale))
    fleet.distributed_optimizer(static.optimizer.SGD(1.0), strategy).minimize(loss)
    if fleet.is_server():
        serve(options)
    exe = static.Executor()
    exe.run(fleet.startup_program)
    fleet.init_worker()
    if options.form == "feed":
        feed_loop(exe, options, files_of_worker(options), loss)
    else:
        dataset_passes(exe, options, files_of_worker(options), [label, *slots], loss)
    return exe


def train_torch(options: argparse.Namespace, strategy: fleet.DistributedStrategy) -> Any:
    import counter

    model, optimizer = counter.with_optimizer(options.scale, strategy)
    if fleet.is_server():
        serve(options)
    fleet.init_worker()
    torch_loop(model, optimizer, options, files_of_worker(options))
    return model


def files_of_worker(options: argparse.Namespace) -> list[str]:
    return fleet.util.get_file_shard(sorted(str(file) for file in Path(options.files).iterdir()))


def main() -> None:
    options = arguments()
    fleet.init()
    strategy = fleet.DistributedStrategy()
    for name, value in STRATEGY[options.mode].items():
        setattr(strategy, name, value)
    train = train_torch if options.form == "torch" else train_program
    trained = train(options, strategy)
    # A geo worker flushes unsent differences at the end of a pass over a dataset, but after a loop only when it stops.
    # So the other workers leave before the first worker saves, and its barrier waits for that.
    flushes_late = options.mode == "geo" and options.form != "dataset"
    if fleet.is_first_worker() or not flushes_late:
        fleet.barrier_worker()
        if fleet.is_first_worker():
            fleet.save_persistables(trained, options.final)
        if not flushes_late:
            fleet.barrier_worker()
    fleet.stop_worker()


main()
