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
from torch.nn import functional

from openfleet import fleet
from openfleet.static import initializer
from openfleet.torch import Embedding, EmbeddingBag

SLOTS, DENSE, DIM = 26, 13, 10

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="click-data", help="has train/*.txt and test/*.txt; generated if missing")
parser.add_argument("--rows", type=int, default=40_000)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--mode", choices=["sync", "async", "geo"], default="async")
parser.add_argument("--model", default="torch_wide_deep-model", help="where the trained model is saved")
args = parser.parse_args()
torch.set_num_threads(1)


class WideDeep(nn.Module):
    """A linear part over the ids, and layers over their vectors and the numbers."""

    def __init__(self):
        super().__init__()
        self.wide = EmbeddingBag(1, mode="sum", initializer=initializer.Constant(0.0))
        self.deep = Embedding(DIM, initializer=initializer.Normal(0.0, 0.01))
        sizes = [SLOTS * DIM + DENSE, 64, 32]
        layers = [layer for i, o in zip(sizes, sizes[1:]) for layer in (nn.Linear(i, o), nn.ReLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

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
    amounts = ["--rows", str(args.rows), "--test-rows", str(args.rows // 4), "--ids", "20000", "--seed", "1"]
    subprocess.run([sys.executable, "-m", "openfleet", "gen", "criteo", *amounts, "--out", args.data], check=True)
fleet.barrier_worker()


def read(part):
    """Returns label, 13 numbers and 26 ids of this worker's rows, from lines `1 label 13 number... 1 id 1 id...`."""
    files = fleet.util.get_file_shard(sorted(glob.glob(f"{args.data}/{part}/*.txt")))
    rows = np.concatenate([np.loadtxt(file) for file in files])
    label, dense = rows[:, 1].astype("float32"), rows[:, 3:16].astype("float32")
    ids = rows[:, 17::2].astype("int64") * SLOTS + np.arange(SLOTS)  # equal ids of two slots are two features
    return torch.from_numpy(label), torch.from_numpy(dense), torch.from_numpy(ids)


label, dense, ids = read("train")
for epoch in range(args.epochs):
    losses = []
    for rows in torch.randperm(len(label)).split(args.batch):
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(dense[rows], ids[rows]), label[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    fleet.util.print_on_rank(f"epoch {epoch}: loss {np.mean(losses):.4f}", 0)
fleet.barrier_worker()

if fleet.is_first_worker():
    fleet.save_persistables(model, args.model)
label, dense, ids = read("test")
with torch.no_grad():
    scores = torch.cat([model(*part) for part in zip(dense.split(1024), ids.split(1024))])
order = torch.cat([scores[label == 0], scores[label == 1]]).argsort()
ranks = torch.empty(len(order), dtype=torch.float64)
ranks[order] = torch.arange(1, len(order) + 1, dtype=torch.float64)
positive = int(label.sum())
negative = len(label) - positive
auc = (ranks[negative:].sum().item() - positive * (positive + 1) / 2) / (positive * negative)
print(f"test AUC {auc:.4f} of {len(label)} rows", flush=True)
fleet.stop_worker()
