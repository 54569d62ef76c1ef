"""The CTR-DNN by torchrec in one process, on the same MultiSlot files.

    python comparisons/ctr_dnn_torchrec.py demo-data --threads 2

The table is a `FusedEmbeddingBagCollection` of fbgemm, which updates the rows within the backward pass. On CPUs it
has no Adam: rows are trained with Adagrad 1e-2, which is less work than Adam. Its rows must have a multiple of four
floats: 12, where the product and the other peers have 10. Slots share one table, as in `ctr_dnn_torch.py`, which
has everything else.
"""

import argparse
import json
import time

import torch
from ctr_dnn_torch import DENSE, SLOTS, evaluate, loss_of, mlp, read
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

DIM = 12
NAMES = [f"C{slot}" for slot in range(1, SLOTS + 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    label, dense, ids = read(f"{options.data}/train/*.txt")
    test = read(f"{options.data}/test/*.txt")
    config = EmbeddingBagConfig(
        name="table",
        embedding_dim=DIM,
        num_embeddings=int(max(ids.max(), test[2].max())) + 1,
        feature_names=NAMES,
        init_fn=lambda weight: torch.nn.init.normal_(weight, std=0.01),
    )
    tables = FusedEmbeddingBagCollection([config], torch.optim.Adagrad, {"lr": 1e-2}, device=torch.device("cpu"))
    layers = mlp([SLOTS * DIM + DENSE, 400, 400, 400, 2])
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3, fused=True)

    def predict(dense, ids):
        lengths = torch.ones(ids.numel(), dtype=torch.int32)
        bags = tables(KeyedJaggedTensor.from_lengths_sync(NAMES, ids.t().reshape(-1), lengths))
        return layers(torch.cat([bags.values(), dense], 1))

    started = time.perf_counter()
    for begin in range(0, len(label), options.batch):
        rows = slice(begin, begin + options.batch)
        loss = loss_of(predict(dense[rows], ids[rows]), label[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    rate = len(label) / (time.perf_counter() - started)
    print(json.dumps({"samples": len(label), "samples_per_second": round(rate), **evaluate(predict, test)}))


if __name__ == "__main__":
    main()
