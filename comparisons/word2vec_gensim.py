#!/usr/bin/env python3
"""Skip-gram word vectors by gensim and by OpenFleet on one corpus: speed, and Spearman on a word-similarity list.

    python comparisons/word2vec_gensim.py CORPUS.txt.gz WORDSIM.tsv --openfleet target/release/openfleet

Both: dim 100, window 5, 5 negatives, subsampling 1e-4, min count 5, 5 epochs, rate 0.025 falling to 0.0001, as many
threads as asked for. Speed is raw words of the text per second of training; reading and counting words is left out
on both sides.
"""

import argparse
import gzip
import json
import subprocess
import tempfile
import time

import numpy as np
from scipy.stats import spearmanr


def pairs_of(path):
    pairs = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("#") or not line.strip():
                continue
            first, second, score = line.split("\t")[:3]
            pairs.append((first.lower(), second.lower(), float(score)))
    return pairs


def spearman(vectors, pairs):
    known = [(a, b, s) for a, b, s in pairs if a in vectors and b in vectors]
    cosine = [
        float(vectors[a] @ vectors[b] / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b])) for a, b, _ in known
    ]
    return float(spearmanr(cosine, [s for _, _, s in known]).statistic), len(known)


def sentences_of(path, longest=1000):
    opener = gzip.open if path.endswith(".gz") else open
    sentences = []
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            sentences += [words[i : i + longest] for i in range(0, len(words), longest)]
    return sentences


def by_gensim(options, pairs):
    from gensim.models import Word2Vec

    sentences = sentences_of(options.corpus)
    raw = sum(map(len, sentences))
    model = Word2Vec(
        vector_size=100,
        window=5,
        negative=5,
        sample=1e-4,
        min_count=5,
        sg=1,
        hs=0,
        alpha=0.025,
        min_alpha=0.0001,
        workers=options.threads,
        seed=1,
    )
    model.build_vocab(sentences)
    started = time.perf_counter()
    model.train(sentences, total_examples=model.corpus_count, epochs=options.epochs)
    seconds = time.perf_counter() - started
    vectors = {word: model.wv[word] for word in model.wv.index_to_key}
    if options.vectors:
        model.wv.save_word2vec_format(options.vectors)
    rho, count = spearman(vectors, pairs)
    return {
        "peer": "gensim",
        "words_per_second": round(raw * options.epochs / seconds),
        "seconds": round(seconds, 1),
        "spearman": round(rho, 4),
        "pairs": count,
    }


def by_openfleet(options, pairs):
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/vectors.txt"
        command = [
            options.openfleet,
            "train",
            "--model",
            "word2vec",
            "--format",
            "text",
            "--train",
            options.corpus,
            "--dim",
            "100",
            "--window",
            "5",
            "--negative",
            "5",
            "--subsample",
            "1e-4",
            "--min-count",
            "5",
            "--epochs",
            str(options.epochs),
            "--threads",
            str(options.threads),
            "--seed",
            str(options.seed),
            "--vectors",
            path,
            "--json",
        ]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        report = json.loads(out.strip().splitlines()[-1])
        vectors = {}
        with open(path, encoding="utf-8") as lines:
            next(lines)
            for line in lines:
                word, *values = line.rstrip().split(" ")
                vectors[word] = np.array(values, dtype=np.float32)
    rho, count = spearman(vectors, pairs)
    return {
        "peer": "openfleet",
        "words_per_second": round(report["words_per_second"]),
        "seconds": round(report["seconds"], 1),
        "spearman": round(rho, 4),
        "pairs": count,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("pairs")
    parser.add_argument("--openfleet", default="target/release/openfleet")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["gensim", "openfleet"])
    parser.add_argument("--vectors", help="gensim: also write the vectors to this file, in word2vec's text format")
    options = parser.parse_args()
    pairs = pairs_of(options.pairs)
    for run in (by_openfleet, by_gensim):
        if options.only in (None, run.__name__.removeprefix("by_")):
            print(json.dumps(run(options, pairs)), flush=True)


if __name__ == "__main__":
    main()
