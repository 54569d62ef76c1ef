"""Trains word vectors by skip-gram with negative sampling, alone or as a job:

python examples/word2vec/train.py
fleetrun --server_num=2 --worker_num=2 examples/word2vec/train.py
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import openfleet.fleet as fleet
from openfleet import models, static
from openfleet.dataset import WordsDataset

parser = argparse.ArgumentParser()
parser.add_argument(
    "--data", default="word-data", help="has words.txt, and pairs.tsv to be judged by; generated if missing"
)
parser.add_argument("--words", type=int, default=400_000)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--dim", type=int, default=50)
parser.add_argument("--model", default="word2vec-model", help="where the trained model is saved")
args = parser.parse_args()

fleet.init()
loss = models.word2vec(dim=args.dim, window=5, negatives=5)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
fleet.distributed_optimizer(static.optimizer.SGD(0.025), strategy).minimize(loss)

# Another program that looks up words afterwards, in the same tables by name.
look_up = static.Program()
with static.program_guard(look_up, static.Program()):
    word = static.data("word", [None, 1], "int64", lod_level=1)
    vector, _ = (
        static.nn.sparse_embedding(word, size=[0, args.dim], param_attr=table)
        for table in ("word_vectors", "output_vectors")
    )

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()

exe = static.Executor()
exe.run(static.default_startup_program())
fleet.init_worker()
if fleet.is_first_worker() and not os.path.exists(args.data):
    amounts = ["--words", str(args.words), "--seed", "1"]
    subprocess.run([sys.executable, "-m", "openfleet", "gen", "words", *amounts, "--out", args.data], check=True)
fleet.barrier_worker()

# Every worker numbers the words of the whole text equally, and trains on its part with its own seed.
corpus = WordsDataset([f"{args.data}/words.txt"], seed=fleet.worker_index())
for epoch in range(args.epochs):
    report = exe.train_from_dataset(fleet.main_program, corpus, fetch_list=[loss], fetch_info=[f"epoch {epoch} loss"])
fleet.barrier_worker()

if fleet.is_first_worker():
    vocabulary = {text: number for number, text in enumerate(corpus.vocabulary())}
    (vectors,) = exe.run(look_up, feed={"word": [[number] for number in range(len(vocabulary))]}, fetch_list=[vector])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    truth, found = [], []
    for line in Path(args.data, "pairs.tsv").read_text().splitlines():
        first, second, similarity = line.split("\t")[:3]
        if first in vocabulary and second in vocabulary:
            truth.append(float(similarity))
            found.append(float(vectors[vocabulary[first]] @ vectors[vocabulary[second]]))
    ranks = [np.argsort(np.argsort(values)) for values in (truth, found)]
    print(f"rank correlation {np.corrcoef(*ranks)[0, 1]:.4f} over {len(truth)} pairs")
if fleet.is_first_worker():  # the others need not save
    fleet.save_persistables(exe, args.model)
fleet.stop_worker()
