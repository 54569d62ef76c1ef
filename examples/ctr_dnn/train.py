"""Trains a click model, written layer by layer, on streamed files, alone or as a job:

python examples/ctr_dnn/train.py
fleetrun --server_num=2 --worker_num=2 examples/ctr_dnn/train.py
"""

import argparse
import glob
import os
import subprocess
import sys

import numpy as np

import openfleet.fleet as fleet
from openfleet import static
from openfleet.dataset import QueueDataset

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="click-data", help="has train/*.tsv and test/*.tsv; generated if missing")
parser.add_argument("--rows", type=int, default=40_000)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--model", default="ctr_dnn-model", help="where the trained model is saved")
args = parser.parse_args()

fleet.init()
# The text format of Criteo: fields are found by name, and categories are hashed to ids, equally on every machine.
slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(1, 27)]
dense, label = static.data("dense", [None, 13]), static.data("label", [None, 1], "int64")
table = static.ParamAttr(name="ids", initializer=static.initializer.Uniform(-0.01, 0.01))
vectors = [static.nn.sparse_embedding(slot, size=[0, 10], param_attr=table) for slot in slots]
x = static.nn.concat([*vectors, dense], axis=1)
for width in (128, 64, 32):
    x = static.nn.fc(x, size=width, activation="relu")
click = static.nn.fc(x, size=2, activation="softmax")
loss = static.nn.mean(static.nn.cross_entropy(click, label))
auc, batch_auc, counters = static.nn.auc(click, label)
test_program = static.default_main_program().clone(for_test=True)

strategy = fleet.DistributedStrategy()
strategy.a_sync = True
fleet.distributed_optimizer(static.optimizer.Adam(1e-3), strategy).minimize(loss)

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


def stream(part):
    """Returns a dataset of this worker's part of the files."""
    dataset = QueueDataset()
    dataset.init(batch_size=256, use_var=[label, dense, *slots], format="criteo", columns={"dense": "log"})
    dataset.set_filelist(fleet.util.get_file_shard(sorted(glob.glob(f"{args.data}/{part}/*.tsv"))))
    return dataset


for epoch in range(args.epochs):
    exe.train_from_dataset(fleet.main_program, stream("train"), fetch_list=[auc], fetch_info=[f"epoch {epoch} AUC"])
fleet.barrier_worker()

for counter in counters:  # they contain the training rows
    tensor = static.global_scope().find_var(counter.name).get_tensor()
    tensor.set(np.zeros(tensor.shape(), "int64"))
exe.infer_from_dataset(test_program, stream("test"))
fleet.util.print_on_rank(f"test AUC {fleet.metrics.auc(*counters[2:]):.4f}", 0)
if fleet.is_first_worker():  # the others need not save
    fleet.save_persistables(exe, args.model)
fleet.stop_worker()
