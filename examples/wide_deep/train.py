"""Trains Wide & Deep on click logs, alone or as a job of servers and workers:

python examples/wide_deep/train.py
fleetrun --server_num=2 --worker_num=2 examples/wide_deep/train.py
"""

import argparse
import glob
import os
import subprocess
import sys

import numpy as np

import openfleet.fleet as fleet
from openfleet import models, static
from openfleet.dataset import InMemoryDataset

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="click-data", help="has train/*.txt and test/*.txt; generated if missing")
parser.add_argument("--rows", type=int, default=40_000)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--mode", choices=["sync", "async", "geo"], default="async")
parser.add_argument("--model", default="wide_deep-model", help="where the trained model is saved")
args = parser.parse_args()

fleet.init()
slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(1, 27)]
dense, label = static.data("dense", [None, 13]), static.data("label", [None, 1], "int64")
model = models.wide_deep(slots, dense, label, hidden=[64, 32])
test_program = static.default_main_program().clone(for_test=True)

strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 20}
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


def read(part):
    """Returns a dataset in memory of this worker's part of the files."""
    dataset = InMemoryDataset()
    dataset.init(batch_size=256, use_var=[label, dense, *slots])
    dataset.set_filelist(fleet.util.get_file_shard(sorted(glob.glob(f"{args.data}/{part}/*.txt"))))
    dataset.load_into_memory()
    return dataset


train, test = read("train"), read("test")
for epoch in range(args.epochs):
    train.global_shuffle(fleet)
    exe.train_from_dataset(fleet.main_program, train, fetch_list=[model.auc], fetch_info=[f"epoch {epoch} AUC"])
fleet.barrier_worker()

for counter in model.auc_counters:  # they contain the training rows
    tensor = static.global_scope().find_var(counter.name).get_tensor()
    tensor.set(np.zeros(tensor.shape(), "int64"))
exe.infer_from_dataset(test_program, test)
test_auc = fleet.metrics.auc(*model.auc_counters[2:])  # over the rows of all workers
fleet.util.print_on_rank(f"test AUC {test_auc:.4f}", 0)
if fleet.is_first_worker():  # the others need not save
    fleet.save_persistables(exe, args.model)
fleet.stop_worker()
