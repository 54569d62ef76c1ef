#!/usr/bin/env python3
"""The CTR-DNN of `openfleet train` as plain PyTorch, on the same MultiSlot files.

    openfleet gen criteo --rows 1000000 --test-rows 100000 --ids 1000000 --seed 1 --out demo-data
    python comparisons/ctr_dnn_torch.py demo-data --threads 2

Same shapes, first values, optimizer and batch as the product's default: 26 slots share one table of 10 floats, beside 13
floats, 400-400-400, softmax over two, Adam 1e-3 (lazy on the table), one pass in file order. Ids of the files are from 1 to
the number of ids, so a plain `nn.Embedding` holds the table.
"""
import argparse
import glob
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def read(pattern):
    """Label, 13 floats, 26 ids of every line of `1 label 13 f.. 1 id 1 id ...`."""
    rows = [np.loadtxt(path, dtype=np.float64, ndmin=2) for path in sorted(glob.glob(pattern))]
    rows = np.concatenate(rows)
    label = torch.from_numpy(rows[:, 1].astype(np.int64))
    dense = torch.from_numpy(rows[:, 3:16].astype(np.float32))
    ids = torch.from_numpy(rows[:, 17::2].astype(np.int64))
    assert ids.shape[1] == 26
    return label, dense, ids


def exact_auc(label, score):
    order = np.argsort(score, kind="mergesort")
    _, inverse, count = np.unique(score[order], return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2.0)[inverse]
    positive = label[order] > 0
    p, n = positive.sum(), (~positive).sum()
    return (rank[positive].sum() - p * (p + 1) / 2) / (float(p) * float(n))


class CtrDnn(nn.Module):
    def __init__(self, ids, dim=10, hidden=(400, 400, 400)):
        super().__init__()
        self.table = nn.Embedding(ids + 1, dim, sparse=True)
        nn.init.normal_(self.table.weight, std=0.01)
        sizes = [26 * dim + 13, *hidden, 2]
        layers = []
        for i, o in zip(sizes[:-1], sizes[1:]):
            linear = nn.Linear(i, o)
            nn.init.normal_(linear.weight, std=i**-0.5)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
        self.dense_layers = nn.Sequential(*layers[:-1])

    def forward(self, dense, ids):
        return self.dense_layers(torch.cat([self.table(ids).flatten(1), dense], 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    label, dense, ids = read(f"{options.data}/train/*.txt")
    test_label, test_dense, test_ids = read(f"{options.data}/test/*.txt")
    model = CtrDnn(int(max(ids.max(), test_ids.max())))
    rest = [p for name, p in model.named_parameters() if not name.startswith("table")]
    optimizers = [torch.optim.SparseAdam(model.table.parameters(), lr=1e-3), torch.optim.Adam(rest, lr=1e-3, fused=True)]
    started = time.perf_counter()
    for begin in range(0, len(label), options.batch):
        rows = slice(begin, begin + options.batch)
        loss = F.cross_entropy(model(dense[rows], ids[rows]), label[rows])
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    seconds = time.perf_counter() - started
    with torch.no_grad():
        logits = torch.cat([model(test_dense[k:k + 4096], test_ids[k:k + 4096]) for k in range(0, len(test_label), 4096)])
        test_logloss = F.cross_entropy(logits, test_label).item()
        score = (logits[:, 1] - logits[:, 0]).numpy()
    print(json.dumps({
        "peer": f"torch {torch.__version__}", "threads": options.threads, "samples": len(label),
        "seconds": round(seconds, 2), "samples_per_second": round(len(label) / seconds),
        "test_auc": round(exact_auc(test_label.numpy(), score), 5), "test_logloss": round(test_logloss, 5),
    }))


if __name__ == "__main__":
    main()
