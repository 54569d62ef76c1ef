"""Finds the nearest words by the vectors that `train.py` saved.

python examples/word2vec/infer.py some words
"""

import argparse

import numpy as np

from openfleet import static
from openfleet.dataset import WordsDataset

parser = argparse.ArgumentParser()
parser.add_argument("words", nargs="*", help="by default the most frequent ones")
parser.add_argument("--data", default="word-data", help="has words.txt, which numbers the words")
parser.add_argument("--model", default="word2vec-model", help="the model that `train.py` saved")
parser.add_argument("--dim", type=int, default=50)
args = parser.parse_args()

word = static.data("word", [None, 1], "int64", lod_level=1)
vector = static.nn.sparse_embedding(word, size=[0, args.dim], param_attr="word_vectors")
exe = static.Executor()
static.load(static.default_main_program(), args.model, exe)

vocabulary = WordsDataset([f"{args.data}/words.txt"]).vocabulary()
(vectors,) = exe.run(feed={"word": [[number] for number in range(len(vocabulary))]}, fetch_list=[vector])
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
for text in args.words or vocabulary[:5]:
    similar = vectors @ vectors[vocabulary.index(text)]
    nearest = [number for number in np.argsort(-similar)[:6] if vocabulary[number] != text]
    print(f"{text}:", ", ".join(f"{vocabulary[number]} {similar[number]:.2f}" for number in nearest[:5]))
