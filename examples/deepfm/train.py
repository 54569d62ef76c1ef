"""Trains DeepFM in a feed loop, with rows from a Python generator, alone or as a geo job:

python examples/deepfm/train.py
fleetrun --server_num=2 --worker_num=2 examples/deepfm/train.py
"""

import argparse
import glob
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import openfleet.fleet as fleet
from openfleet import models, reader, static

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="click-data", help="has train/*.txt and test/*.txt; generated if missing")
parser.add_argument("--rows", type=int, default=40_000)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--model", default="deepfm-model", help="where the trained model is saved")
args = parser.parse_args()

fleet.init()
slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(1, 27)]
dense, label = static.data("dense", [None, 13]), static.data("label", [None, 1], "int64")
model = models.deepfm(slots, dense, label, hidden=[64, 32])
test_program = static.default_main_program().clone(for_test=True)

strategy = fleet.DistributedStrategy()
strategy.a_sync = True
strategy.a_sync_configs = {"k_steps": 20}  # workers train on copies, and exchange differences every 20 batches
fleet.distributed_optimizer(static.optimizer.Adam(1e-3), strategy).minimize(model.loss)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()

exe = static.Executor()
exe.run(static.default_startup_program())
fleet.init_worker()
if fleet.is_first_worker() and not os.path.exists(args.data):
    amounts = ["--rows", str(args.rows), "--test-rows", str(args.rows // 4), "--ids", "20000", "--seed", "1"]
    subprocess.run([sys.executable, "-m", "openfleet", "gen", "criteo", *amounts, "--out", args.data], check=True)
fleet.barrier_worker()
feeder = static.DataFeeder([label, dense, *slots])


def rows(part):
    """Reads the rows of this worker's part of the files: label, 13 numbers, and the ids of 26 slots."""
    for path in fleet.util.get_file_shard(sorted(glob.glob(f"{args.data}/{part}/*.txt"))):
        for line in Path(path).read_text().splitlines():
            words, row = iter(line.split()), []
            for field in range(28):
                kind = float if field == 1 else int
                row.append([kind(next(words)) for _ in range(int(next(words)))])
            yield row


for epoch in range(args.epochs):
    batches = reader.batch(reader.shuffle(lambda: rows("train"), 10_000, seed=epoch), 256)
    for step, batch in enumerate(reader.buffered(batches, 4)()):
        loss, auc = exe.run(fleet.main_program, feed=feeder.feed(batch), fetch_list=[model.loss, model.auc])
        if step % 50 == 0:
            print(f"epoch {epoch} step {step}: loss {loss:.4f}, AUC {auc:.4f}", flush=True)
fleet.barrier_worker()

for counter in model.auc_counters:  # they contain the training rows
    tensor = static.global_scope().find_var(counter.name).get_tensor()
    tensor.set(np.zeros(tensor.shape(), "int64"))
for batch in reader.batch(lambda: rows("test"), 256)():
    exe.run(test_program, feed=feeder.feed(batch))
fleet.util.print_on_rank(f"test AUC {fleet.metrics.auc(*model.auc_counters[2:]):.4f}", 0)
if fleet.is_first_worker():  # the others need not save
    fleet.save_persistables(exe, args.model)
fleet.stop_worker()
