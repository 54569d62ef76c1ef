"""Trains every static model of a checkout of PaddleRec, unmodified, and compares the costs with PaddlePaddle's.

    python paddlerec.py CHECKOUT [--reference PYTHON] [--models rank/dnn ...] [--tools static_trainer ...]

PaddleRec is not part of this repository: `git clone https://github.com/PaddlePaddle/PaddleRec`. Its own sample data and
configurations are used; only `use_gpu=False` and one epoch are set. `--reference` is the Python of an environment with
`paddlepaddle==2.6.2`: the model is then trained there first, and here from the same initial weights.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

RECORD = Path(__file__).with_name("record_steps.py").resolve()
COMPAT = ["-m", "openfleet.compat"]


def models_of(checkout):
    """The directories with a static model, by their path below `models`."""
    return sorted(
        str(path.parent.relative_to(checkout / "models")) for path in checkout.glob("models/**/static_model.py")
    )


def config_of(directory):
    """The configuration that a model's page runs; `None` if it needs data that is not part of PaddleRec."""
    for name in ("config.yaml", "config_queuedataset.yaml", "benchmark.yaml", "config_bigdata.yaml"):
        if (directory / name).exists():
            return name
    return None


def run(python, directory, tool, config, options, log, record=()):
    """Runs one tool of PaddleRec in the directory of a model. Returns its exit code; None after the time limit."""
    script = os.path.relpath(
        directory.parents[len(directory.parts) - directory.parts.index("models") - 1] / "tools" / f"{tool}.py",
        directory,
    )
    command = [*python, str(RECORD), *record, script, "-m", config, "-o", *options]
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PATH": os.path.dirname(python[0]) + os.pathsep + os.environ["PATH"],
    }
    environment.pop("PYTHONPATH", None)
    with open(log, "w") as file:
        try:
            return subprocess.run(
                command, cwd=directory, stdout=file, stderr=subprocess.STDOUT, env=environment, timeout=SECONDS
            ).returncode
        except subprocess.TimeoutExpired:
            return None


SECONDS = 600


def last_error(log):
    """The last line of an error in a log, for the table."""
    lines = [line.strip() for line in Path(log).read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b|SystemExit|AssertionError", line)]
    return (errors or lines or [""])[-1][:160]


def difference(ours, theirs):
    """The greatest difference of the recorded costs, relative to values above 1."""
    greatest = 0.0
    for a, b in zip(ours, theirs):
        for x, y in zip(a, b):
            x, y = np.array(x[:1]), np.array(y[:1])
            greatest = max(greatest, float(np.max(np.abs(x - y) / np.maximum(1.0, np.abs(y)))))
    return greatest


def main():
    """Runs all models and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--reference", help="the Python of an environment with paddlepaddle 2.6.2")
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.mkdtemp(prefix="paddlerec-")))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--only-reference",
        action="store_true",
        help="train with PaddlePaddle only, and keep its weights and costs in --logs",
    )
    options = parser.parse_args()
    options.logs = options.logs.resolve()
    options.logs.mkdir(parents=True, exist_ok=True)
    copies = {}
    for side in ("reference", "here"):
        copies[side] = options.logs / f"PaddleRec-{side}"
        if not copies[side].exists():
            shutil.copytree(options.checkout, copies[side], ignore=shutil.ignore_patterns(".git"))
    passed = 0
    names = options.models or models_of(options.checkout)
    for name in names:
        stem = name.replace("/", "_")
        config = config_of(options.checkout / "models" / name)
        settings = [
            "runner.use_gpu=False",
            "runner.epochs=1",
            "runner.print_interval=1",
            "runner.pipe_command=python " + "queuedataset_reader.py",
        ]
        settings = settings[:3]
        weights, costs = options.logs / f"{stem}.npz", {side: options.logs / f"{stem}-{side}.json" for side in copies}
        record = ["--steps", str(options.steps)]
        said = []
        if options.reference and not (options.logs / f"{stem}-reference.code").exists():
            code = run(
                [options.reference],
                copies["reference"] / "models" / name,
                "static_trainer",
                config,
                settings,
                options.logs / f"{stem}-reference.log",
                [*record, "--save-weights", str(weights), "--costs", str(costs["reference"])],
            )
            (options.logs / f"{stem}-reference.code").write_text(str(code))
        if (options.logs / f"{stem}-reference.code").exists():
            code = (options.logs / f"{stem}-reference.code").read_text()
            said.append(
                "PaddlePaddle passes"
                if code == "0"
                else f"PaddlePaddle fails: {last_error(options.logs / f'{stem}-reference.log')[:60]}"
            )
        if not options.only_reference:
            log = options.logs / f"{stem}-here.log"
            given = ["--load-weights", str(weights), "--costs", str(costs["here"])] if weights.exists() else []
            code = run(
                [sys.executable, *COMPAT],
                copies["here"] / "models" / name,
                "static_trainer",
                config,
                settings,
                log,
                [*record, *given],
            )
            passed += code == 0
            said.append("passes here" if code == 0 else f"FAILS here ({code}): {last_error(log)}")
            if costs["here"].exists() and costs["reference"].exists():
                ours, theirs = (json.loads(costs[side].read_text()) for side in ("here", "reference"))
                said.append(f"{min(len(ours), len(theirs))} steps differ by {difference(ours, theirs):.1e}")
        print(f"{name}: {'; '.join(said)}", flush=True)
    print(f"{passed} of {len(names)} pass here; logs: {options.logs}")


main()
