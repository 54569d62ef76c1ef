#!/usr/bin/env python3
"""The CTR-DNN and the Wide & Deep of `openfleet train` as plain PyTorch, on the same MultiSlot files.

    openfleet gen criteo --rows 1000000 --test-rows 100000 --ids 1000000 --seed 1 --out demo-data
    python comparisons/ctr_dnn_torch.py demo-data --threads 2

Same shapes, first values, optimizer and batch as the product's default: 26 slots share one table of 10 floats,
beside 13 floats, 400-400-400, softmax over two, Adam 1e-3 (lazy on the table), one pass in file order. Ids of the
files are from 1 to the number of ids, so a plain `nn.Embedding` holds the table.
"""

import argparse
import glob
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SLOTS, DENSE = 26, 13


def read(pattern):
    """Label, 13 floats, 26 ids of every line of `1 label 13 f.. 1 id 1 id ...`."""
    rows = [np.loadtxt(path, dtype=np.float64, ndmin=2) for path in sorted(glob.glob(pattern))]
    rows = np.concatenate(rows)
    label = torch.from_numpy(rows[:, 1].astype(np.int64))
    dense = torch.from_numpy(rows[:, 3:16].astype(np.float32))
    ids = torch.from_numpy(rows[:, 17::2].astype(np.int64))
    assert ids.shape[1] == SLOTS
    return label, dense, ids


def exact_auc(label, score):
    order = np.argsort(score, kind="mergesort")
    _, inverse, count = np.unique(score[order], return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2.0)[inverse]
    positive = label[order] > 0
    p, n = positive.sum(), (~positive).sum()
    return (rank[positive].sum() - p * (p + 1) / 2) / (float(p) * float(n))


def mlp(sizes):
    """Linear layers with ReLU between them, with the first values of the product."""
    layers = []
    for i, o in zip(sizes[:-1], sizes[1:]):
        linear = nn.Linear(i, o)
        nn.init.normal_(linear.weight, std=i**-0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def embedding(ids, dim):
    table = nn.Embedding(ids + 1, dim, sparse=True)
    nn.init.normal_(table.weight, std=0.01)
    return table


class CtrDnn(nn.Module):
    """Two logits per row."""

    def __init__(self, ids, dim=10, hidden=(400, 400, 400)):
        super().__init__()
        self.table = embedding(ids, dim)
        self.dense_layers = mlp([SLOTS * dim + DENSE, *hidden, 2])

    def forward(self, dense, ids):
        return self.dense_layers(torch.cat([self.table(ids).flatten(1), dense], 1))


class WideDeep(nn.Module):
    """One logit per row: a deep part, and a linear part over the floats."""

    def __init__(self, ids, dim=16, hidden=(256, 128, 64)):
        super().__init__()
        self.table = embedding(ids, dim)
        self.deep = mlp([SLOTS * dim + DENSE, *hidden, 1])
        self.wide = mlp([DENSE, 1])

    def forward(self, dense, ids):
        return self.deep(torch.cat([self.table(ids).flatten(1), dense], 1)) + self.wide(dense)


MODELS = {"ctr_dnn": CtrDnn, "wide_deep": WideDeep}


def loss_of(logits, label):
    """Mean log loss of two logits or of one."""
    if logits.shape[1] == 2:
        return F.cross_entropy(logits, label)
    return F.binary_cross_entropy_with_logits(logits.squeeze(1), label.float())


def evaluate(predict, test):
    """Test AUC and log loss of `predict(dense, ids)`, which returns logits."""
    label, dense, ids = test
    with torch.no_grad():
        logits = torch.cat([predict(dense[k : k + 4096], ids[k : k + 4096]) for k in range(0, len(label), 4096)])
        logloss = loss_of(logits, label).item()
    score = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    return {"test_auc": round(exact_auc(label.numpy(), score.numpy()), 5), "test_logloss": round(logloss, 5)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", choices=MODELS, default="ctr_dnn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    label, dense, ids = read(f"{options.data}/train/*.txt")
    test = read(f"{options.data}/test/*.txt")
    model = MODELS[options.model](int(max(ids.max(), test[2].max())))
    rest = [p for name, p in model.named_parameters() if not name.startswith("table")]
    optimizers = [
        torch.optim.SparseAdam(model.table.parameters(), lr=1e-3),
        torch.optim.Adam(rest, lr=1e-3, fused=True),
    ]
    started = time.perf_counter()
    for begin in range(0, len(label), options.batch):
        rows = slice(begin, begin + options.batch)
        loss = loss_of(model(dense[rows], ids[rows]), label[rows])
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    seconds = time.perf_counter() - started
    report = {
        "peer": f"torch {torch.__version__}",
        "threads": options.threads,
        "samples": len(label),
        "seconds": round(seconds, 2),
        "samples_per_second": round(len(label) / seconds),
    }
    print(json.dumps({**report, **evaluate(model, test)}))


if __name__ == "__main__":
    main()
