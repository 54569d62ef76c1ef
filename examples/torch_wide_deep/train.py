"""Trains a PyTorch Wide & Deep on click logs, alone or as a job of servers and workers:

python examples/torch_wide_deep/train.py
fleetrun --server_num=2 --worker_num=2 examples/torch_wide_deep/train.py
"""

import argparse
import glob
import os
import subprocess
import sys

import numpy as np
import torch
from torch import nn

from openfleet import fleet
from openfleet.static import initializer
from openfleet.torch import Embedding, EmbeddingBag

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="click-data", help="has train/*.txt and test/*.txt; generated if missing")
parser.add_argument("--mode", choices=["sync", "async", "geo"], default="async")
args = parser.parse_args()
torch.set_num_threads(1)


class WideDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = EmbeddingBag(1, mode="sum", initializer=initializer.Constant(0.0))
        self.deep = Embedding(10, initializer=initializer.Normal(0.0, 0.01))
        self.layers = nn.Sequential(nn.Linear(273, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense, ids):
        deep = torch.cat([self.deep(ids).flatten(1), dense], dim=1)
        return (self.wide(ids) + self.layers(deep)).squeeze(1)


fleet.init()
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 20}
model = WideDeep()
optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=1e-3), strategy, model)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
fleet.init_worker()
if fleet.is_first_worker() and not os.path.exists(args.data):
    amounts = ["--rows", "40000", "--test-rows", "10000", "--ids", "20000", "--seed", "1"]
    subprocess.run([sys.executable, "-m", "openfleet", "gen", "criteo", *amounts, "--out", args.data], check=True)
fleet.barrier_worker()


def read(part):
    """Returns label, 13 numbers and 26 ids of this worker's rows, from lines `1 label 13 number... 1 id 1 id...`."""
    files = fleet.split_files(sorted(glob.glob(f"{args.data}/{part}/*.txt")))
    rows = np.concatenate([np.loadtxt(file) for file in files])
    ids = rows[:, 17::2].astype("int64") * 26 + np.arange(26)  # equal ids of two slots are two features
    return [torch.from_numpy(field) for field in (rows[:, 1].astype("float32"), rows[:, 3:16].astype("float32"), ids)]


label, dense, ids = read("train")
for _ in range(2):
    for rows in torch.randperm(len(label)).split(256):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(dense[rows], ids[rows]), label[rows]).backward()
        optimizer.step()
fleet.barrier_worker()
label, dense, ids = read("test")
with torch.no_grad():
    scores = (torch.sigmoid(model(dense, ids)) * 4095).long()
counts = [np.bincount(scores[label == kind], minlength=4096) for kind in (1, 0)]
fleet.util.print_on_rank(f"test AUC {fleet.metrics.auc(*counts):.4f}", 0)  # over the rows of all workers
fleet.save_persistables(model, "torch_wide_deep-model")
fleet.stop_worker()
