"""Trains every static model of a checkout of PaddleRec, unmodified, and compares the costs with PaddlePaddle's.

    python paddlerec.py CHECKOUT [--reference PYTHON] [--models rank/dnn ...] [--tool static_infer] [--logs DIR]

PaddleRec is not part of this repository: `git clone https://github.com/PaddlePaddle/PaddleRec`. Its own sample data and
configurations are used; only `runner.use_gpu=False` and one epoch are set. `--reference` is the Python of an environment
with `paddlepaddle==2.6.2`, `numpy<2` and what PaddleRec needs: each model is then trained there first, and here from the
same initial weights, on the same batches.

`--tool static_infer --logs DIR` evaluates what an earlier run with the same directory has trained. `--tool
static_ps_trainer` trains the models that read by a dataset with a server and a worker, each system under its own
`fleetrun`; where a configuration needs data that is not part of PaddleRec, random rows are generated.

A line says of each model whether PaddlePaddle runs it, whether it runs here, and by how much the costs of the first
steps differ. The exit code is 1 if a model that PaddlePaddle runs does not run here.
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
HERE = [sys.executable, "-m", "openfleet.compat"]
SECONDS = 600
SETTINGS = ["runner.use_gpu=False", "runner.epochs=1", "runner.print_interval=1"]
SETTINGS += ["runner.infer_start_epoch=0", "runner.infer_end_epoch=1"]
# Batch norm over the two or four rows of a sample batch turns the rounding of the last bit into other costs.
MORE_SETTINGS = {
    "rank/difm": ["runner.train_batch_size=40", "runner.epochs=5"],
    "rank/dlrm": ["runner.train_batch_size=40", "runner.epochs=5"],
}
# What `static_ps_trainer` trains: a model, its configuration, and where its data is.
PIPE = "runner.pipe_command=python queuedataset_reader.py"
WITH_DATASETS = [
    ("rank/dnn", "config_cpups.yaml", [PIPE]),
    ("rank/dnn", "benchmark.yaml", ["runner.train_data_dir=rows"]),
    ("rank/deepfm", "benchmark.yaml", ["runner.train_data_dir=rows"]),
    ("rank/wide_deep", "config_cpups.yaml", [PIPE]),
    ("rank/wide_deep", "benchmark_dump.yaml", ["runner.train_data_dir=rows_with_names"]),
]


def models_of(checkout):
    """The directories with a static model, by their path below `models`."""
    return sorted(str(path.parent.relative_to(checkout / "models")) for path in checkout.glob("models/**/static_model.py"))


def config_of(directory):
    """The configuration that a model's page runs; `None` if it needs data that is not part of PaddleRec."""
    for name in ("config.yaml", "config_queuedataset.yaml", "benchmark.yaml", "config_bigdata.yaml"):
        if (directory / name).exists():
            return name
    return None


def run(python, directory, tool, settings, log, record=()):
    """Runs one tool of PaddleRec in the directory of a model. Returns its exit code; None after the time limit."""
    checkout = next(parent for parent in directory.parents if (parent / "tools").is_dir())
    script = os.path.relpath(checkout / "tools" / f"{tool}.py", directory)
    command = [*python, str(RECORD), *record, script, "-m", str(config_of(directory)), "-o", *settings]
    path = os.path.dirname(python[0]) + os.pathsep + os.environ["PATH"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PATH": path}
    environment.pop("PYTHONPATH", None)
    with open(log, "w") as file:
        options = {"cwd": directory, "stdout": file, "stderr": subprocess.STDOUT, "env": environment}
        try:
            return subprocess.run(command, timeout=SECONDS, **options).returncode
        except subprocess.TimeoutExpired:
            return None


def write_rows(directory):
    """Writes rows of the Criteo data set, as random as its columns allow, without and with a name for each row."""
    draw = np.random.default_rng(1)
    rows = []
    for _ in range(2000):
        numbers, categories = draw.integers(0, 50, 13), draw.integers(0, 1000, 26)
        rows.append("\t".join([str(draw.integers(2)), *map(str, numbers), *(f"{category:08x}" for category in categories)]))
    for folder, lines in (("rows", rows), ("rows_with_names", [f"row{i}\t{row}" for i, row in enumerate(rows)])):
        (directory / folder).mkdir(exist_ok=True)
        (directory / folder / "part-0").write_text("".join(f"{line}\n" for line in lines))


def train_with_servers(fleetrun, directory, config, settings, log):
    """Trains a model with a server and a worker. Returns whether the worker ended well."""
    logs = Path(f"{log}.processes")
    write_rows(directory)
    script = os.path.relpath(directory.parents[2] / "tools" / "static_ps_trainer.py", directory)
    command = [*fleetrun, "--server_num=1", "--worker_num=1", "--log_dir", str(logs), script, "-m", config]
    command += ["-o", "runner.epochs=1", "runner.thread_num=1", *settings]
    path = os.path.dirname(fleetrun[0]) + os.pathsep + os.environ["PATH"]
    with open(log, "w") as file:
        options = {"cwd": directory, "stdout": file, "stderr": subprocess.STDOUT, "env": {**os.environ, "PATH": path}}
        try:
            code = subprocess.run(command, timeout=SECONDS, **options).returncode
        except subprocess.TimeoutExpired:
            return False
    # PaddlePaddle's launcher returns 0 also if a process has failed, and its datasets go on without a failed reader.
    said = "".join(path.read_text(errors="replace") for path in [Path(log), *sorted(logs.glob("worker*"))])
    return code == 0 and "Run Success" in said and "Traceback" not in said


def compare_with_servers(options, copies):
    """Trains the models that read by a dataset with servers. Returns how many run only with PaddlePaddle."""
    missing = 0
    for name, config, settings in WITH_DATASETS:
        ran = {}
        fleetruns = {"here": [str(Path(sys.executable).with_name("fleetrun")), "--compat"]}
        if options.reference:
            fleetruns["reference"] = [str(Path(options.reference).with_name("fleetrun"))]
        for side, fleetrun in fleetruns.items():
            log = options.logs / f"{name.replace('/', '-')}-{config}-{side}.log"
            ran[side] = train_with_servers(fleetrun, copies[side] / "models" / name, config, settings, log)
        said = [f"{side} {'runs' if well else 'FAILS'}" for side, well in sorted(ran.items())]
        print(f"{name} {config}: {', '.join(said)}", flush=True)
        missing += ran.get("reference", True) and not ran["here"]
    return missing


def last_error(log):
    """The last line of an error in a log."""
    lines = [line.strip() for line in Path(log).read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b|SystemExit|AssertionError", line)]
    return (errors or lines or [""])[-1][:160]


def difference(ours, theirs):
    """The greatest difference of the recorded numbers, relative to those above 1."""
    greatest = 0.0
    for a, b in zip(ours, theirs):
        for x, y in zip(a, b):
            x, y = np.array(x[:1]), np.array(y[:1])
            greatest = max(greatest, float(np.max(np.abs(x - y) / np.maximum(1.0, np.abs(y)), initial=0.0)))
    return greatest


class Comparison:
    """One model in both systems. What PaddlePaddle has done is kept in the directory of the logs, and not repeated."""

    def __init__(self, name, options, copies):
        self.name, self.options, self.copies = name, options, copies
        self.stem = options.logs / "-".join([*name.split("/"), *([] if options.tool == "static_trainer" else [options.tool])])
        # The weights and batches of PaddlePaddle.
        self.given = self.stem
        self.costs = {side: Path(f"{self.stem}-{side}.json") for side in copies}
        self.settings = [*SETTINGS, *MORE_SETTINGS.get(name, ())]

    def log(self, side):
        """Where the output of one side is."""
        return Path(f"{self.stem}-{side}.log")

    def train(self, side, python, *more):
        """Trains on one side and returns the exit code."""
        self.costs[side].unlink(missing_ok=True)
        record = ["--steps", str(self.options.steps), "--costs", str(self.costs[side]), *more]
        directory = self.copies[side] / "models" / self.name
        return run(python, directory, self.options.tool, self.settings, self.log(side), record)

    def reference(self):
        """Whether PaddlePaddle runs the model; None if it was not asked."""
        code = Path(f"{self.stem}-reference.code")
        if self.options.reference and not code.exists():
            self.given.mkdir(exist_ok=True)
            code.write_text(str(self.train("reference", [self.options.reference], "--save", str(self.given))))
        return code.read_text() == "0" if code.exists() else None

    def here(self):
        """Whether the model runs here."""
        given = ["--load", str(self.given)] if (self.given / "weights.npz").exists() else []
        return self.train("here", HERE, *given) == 0

    def differ(self):
        """By how much the costs differ, in words."""
        if not all(path.exists() for path in self.costs.values()):
            return "no costs to compare"
        ours, theirs = (json.loads(self.costs[side].read_text()) for side in ("here", "reference"))
        return f"{min(len(ours), len(theirs))} steps differ by {difference(ours, theirs):.1e}"


def main():
    """Runs all models and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--reference", help="the Python of an environment with paddlepaddle 2.6.2")
    parser.add_argument("--models", nargs="*", help="some models, by their path below `models`")
    parser.add_argument("--tool", default="static_trainer", help="the program under `tools` (default: %(default)s)")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.mkdtemp(prefix="paddlerec-")))
    parser.add_argument("--steps", type=int, default=10, help="how many steps are compared (default: %(default)s)")
    options = parser.parse_args()
    options.logs = options.logs.resolve()
    options.logs.mkdir(parents=True, exist_ok=True)
    copies = {side: options.logs / f"PaddleRec-{side}" for side in ("reference", "here")}
    for copy in copies.values():
        if not copy.exists():
            shutil.copytree(options.checkout, copy, ignore=shutil.ignore_patterns(".git"))
    if options.tool == "static_ps_trainer":
        return 1 if compare_with_servers(options, copies) else 0
    names = options.models or models_of(options.checkout)
    passed = missing = 0
    for name in names:
        comparison = Comparison(name, options, copies)
        there, here = comparison.reference(), comparison.here()
        said = []
        if there is not None:
            said.append("PaddlePaddle runs it" if there else f"PaddlePaddle: {last_error(comparison.log('reference'))}")
        said.append("runs here" if here else f"FAILS here: {last_error(comparison.log('here'))}")
        if there and here:
            said.append(comparison.differ())
        passed, missing = passed + here, missing + bool(there and not here)
        print(f"{name}: {'; '.join(said)}", flush=True)
    print(f"{passed} of {len(names)} run here, {missing} only with PaddlePaddle; logs: {options.logs}")
    return 1 if missing else 0


sys.exit(main())
