"""Models of PaddleRec, unmodified, here and with PaddlePaddle itself, in turns.

    python comparisons/paddlerec.py CHECKOUT --reference PYTHON [--python PYTHON] [--rows 60000] [--rounds 3]

CHECKOUT is a clone of https://github.com/PaddlePaddle/PaddleRec; `--reference` is the Python of an environment with
`paddlepaddle==2.6.2` and what PaddleRec needs, `--python` that of one with OpenFleet (this one by default).

Prints samples/s of `exe.run` alone, on batches that are read before (`paddlerec_steps.py`), and of PaddleRec's trainer
with its own reader in Python, each with its ratio; and samples/s of the reader without training, which no system
exceeds that reads in one process. All are medians over the rounds, of medians over intervals of 20 batches without the
first.
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
LINE = re.compile(r"avg_batch_cost: ([\d.]+) sec")
STEPS = Path(__file__).with_name("paddlerec_steps.py")
READ = """
import sys, time
import criteo_reader
began, rows = time.perf_counter(), 0
for _ in criteo_reader.RecDataset([sys.argv[1]], config={"runner.inference": False}):
    rows += 1
print("samples/s", rows / (time.perf_counter() - began))
"""


def write_rows(path: Path, rows: int) -> None:
    """Writes click data in the format of PaddleRec's Criteo samples: 13 numbers and 26 fields, frequent ids first."""
    draw = random.Random(1)
    with path.open("w") as file:
        for _ in range(rows):
            numbers = " ".join(f"dense_feature:{draw.random():.4f}" for _ in range(13))
            ids = " ".join(f"{field}:{int(1_000_000 * draw.random() ** 6)}" for field in range(1, 27))
            file.write(f"click:{int(draw.random() < 0.25)} {numbers} {ids}\n")


def run(command: list[str], directory: Path) -> str:
    """Runs a command in a directory and returns what it prints."""
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)} in {directory}:\n{(ran.stdout + ran.stderr)[-2000:]}")
    return ran.stdout + ran.stderr


def speed_in(said: str) -> float:
    """The speed that a script has printed, among messages of the systems."""
    return float(said.split("samples/s")[1].split()[0])


def steps(command: list[str], directory: Path, data: Path) -> float:
    """Samples/s of `exe.run`."""
    said = run([*command, str(STEPS), str(directory), str(data), str(BATCH)], directory)
    return speed_in(said)


def train(command: list[str], directory: Path, data: Path) -> float:
    """Samples/s of one epoch with PaddleRec's trainer and reader."""
    settings = ["use_gpu=False", "epochs=1", f"print_interval={INTERVAL}", f"train_batch_size={BATCH}"]
    options = [f"runner.{setting}" for setting in [*settings, f"train_data_dir={data}", "use_auc=True"]]
    said = run([*command, "../../../tools/static_trainer.py", "-m", "config.yaml", "-o", *options], directory)
    return BATCH / statistics.median(list(map(float, LINE.findall(said)))[1:])


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
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "train"
        data.mkdir()
        write_rows(data / "rows.txt", options.rows)
        for model in MODELS:
            directory = options.checkout.resolve() / "models" / model
            speeds: dict[tuple[str, str], list[float]] = {}
            for _ in range(options.rounds):
                for name, command in systems.items():
                    speeds.setdefault((name, "`exe.run`"), []).append(steps(command, directory, data))
                    speeds.setdefault((name, "with its reader"), []).append(train(command, directory, data))
            for what in ("`exe.run`", "with its reader"):
                theirs, ours = (statistics.median(speeds[name, what]) for name in systems)
                print(f"| {model} | {what} | {theirs:,.0f} | {ours:,.0f} | {ours / theirs:.2f} |", flush=True)
        read = run([options.reference, "-c", READ, str(data / "rows.txt")], directory)
        print(f"\nThe reader alone: {speed_in(read):,.0f} samples/s")


main()
