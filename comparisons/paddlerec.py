"""Models of PaddleRec, unmodified, here and with PaddlePaddle itself, in turns.

    python comparisons/paddlerec.py CHECKOUT --reference PYTHON [--python PYTHON] [--rows 60000] [--rounds 3]

CHECKOUT is a clone of https://github.com/PaddlePaddle/PaddleRec; `--reference` is the Python of an environment with
`paddlepaddle==2.6.2` and what PaddleRec needs, `--python` that of one with OpenFleet (this one by default). Prints
samples/s of `exe.run` alone, and together with PaddleRec's own reader in Python, each with its ratio. They are medians
over the rounds, of medians over intervals of 20 batches without the first.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = ["rank/dnn", "rank/wide_deep", "rank/deepfm"]
BATCH, INTERVAL = 512, 20
LINE = re.compile(r"avg_reader_cost: ([\d.]+) sec, avg_batch_cost: ([\d.]+) sec")


def write_rows(path: Path, rows: int) -> None:
    """Writes click data in the format of PaddleRec's Criteo samples: 13 numbers and 26 fields, frequent ids first."""
    draw = random.Random(1)
    with path.open("w") as file:
        for _ in range(rows):
            numbers = " ".join(f"dense_feature:{draw.random():.4f}" for _ in range(13))
            ids = " ".join(f"{field}:{int(1_000_000 * draw.random() ** 6)}" for field in range(1, 27))
            file.write(f"click:{int(draw.random() < 0.25)} {numbers} {ids}\n")


def train(command: list[str], directory: Path, data: Path) -> tuple[float, float]:
    """Trains one epoch. Returns samples/s of `exe.run`, and with the reader."""
    settings = ["use_gpu=False", "epochs=1", f"print_interval={INTERVAL}", f"train_batch_size={BATCH}"]
    options = [f"runner.{setting}" for setting in [*settings, f"train_data_dir={data}", "use_auc=True"]]
    script = [*command, "../../../tools/static_trainer.py", "-m", "config.yaml", "-o", *options]
    ran = subprocess.run(script, cwd=directory, capture_output=True, text=True)
    costs = [tuple(map(float, found)) for found in LINE.findall(ran.stdout + ran.stderr)][1:]
    if ran.returncode or not costs:
        raise SystemExit(f"{' '.join(script)} in {directory}:\n{(ran.stdout + ran.stderr)[-2000:]}")
    both = statistics.median(batch for _, batch in costs)
    alone = statistics.median(batch - reader for reader, batch in costs)
    return BATCH / alone, BATCH / both


def main() -> None:
    """Trains all models in turns and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    systems = {"PaddlePaddle": [options.reference], "OpenFleet": [options.python, "-m", "openfleet.compat"]}
    print("| model | what | PaddlePaddle | OpenFleet | ratio |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "train"
        data.mkdir()
        write_rows(data / "rows.txt", options.rows)
        for model in MODELS:
            speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
            for _ in range(options.rounds):
                for name, command in systems.items():
                    speeds[name].append(train(command, options.checkout.resolve() / "models" / model, data))
            for part, what in enumerate(("`exe.run`", "with its reader")):
                theirs, ours = (statistics.median(speed[part] for speed in speeds[name]) for name in systems)
                print(f"| {model} | {what} | {theirs:,.0f} | {ours:,.0f} | {ours / theirs:.2f} |", flush=True)


main()
