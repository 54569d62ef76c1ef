"""Kills, freezes and disconnects processes of real training jobs, and checks that every row is trained exactly once.

    make chaos          at least 300 runs
    make chaos-short    about 20 runs
    target/venv/bin/python tests/chaos/chaos.py --runs 40 --seed 7 --mode sync --keep

Each run is a job of 2 servers and 2 workers under `fleetrun --max-restarts=3` that trains the model `counter`: every
occurrence of an id adds -1 to its row, so the final checkpoint can be compared with the data, key by key. While the job
trains, one fault happens to it. Runs are chosen by a seed so that every pair of values of two dimensions occurs:

    mode      sync, half_async, async, hybrid, geo
    victim    worker, server, both, reader (of a worker), network
    fault     kill (SIGKILL), term (SIGTERM), stop5, stop30 (SIGSTOP, and SIGCONT after 5 or 30 seconds),
              reset (TCP connections through a proxy are reset several times), fail (a reader fails once),
              drop (5 % of all packets, in a network namespace; needs root and `iptables` or `tc`, else it is skipped)
    form      cli (`openfleet train`), dataset (Python, `train_from_dataset`), feed (Python, `exe.run(feed=...)`),
              torch (a loop of PyTorch; only with `--form torch`, because it needs PyTorch)
    epochs    1, 3
    threads   1 or 2 per worker (feed and torch: 1)
    saves     checkpoints while it trains, or only the one at the end

A run ends as

    exact     exit code 0, and every key has its count
    refused   another exit code, with a cause: a fault costs fewer restarts than there are, so this is a failure too
    WRONG     exit code 0, and a key has another count: rows were lost or trained twice
    HUNG      not over after `--limit` seconds

The exit code is 1 if a run was WRONG, HUNG or refused. The printed name of a run says everything
about it: `--run NAME` repeats it with the same data, the same victim and the fault at the same step. Thread timing
still differs, so add `--repeat 5` where a failure is rare. The times from the fault to the line that names the
victim, and to the line that reports a restart, are printed and never judged.

For a few sync runs of the CLI, a `ctr_dnn` job gets the same fault, and a line says whether its dense parameters are
equal to the bit to those of an undisturbed run. `--fault none` plays every combination undisturbed: the harness itself
works if all of them are exact. Everything listens on loopback only, and only `drop` needs root.
"""

from __future__ import annotations

import argparse
import collections
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import combinations
import faults
from combinations import Run
from job import Job, Place, Result

OUTCOMES = ("exact", "refused", "WRONG", "HUNG", "skipped")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="how many [300; with `--fault none` every combination once]")
    parser.add_argument("--seed", type=int, default=1, help="chooses the runs and everything random in them [1]")
    parser.add_argument(
        "--only", type=int, metavar="INDEX", help="run only this one of the selected runs, counted from 1"
    )
    parser.add_argument("--run", metavar="NAME", help="repeat the run with this printed name")
    parser.add_argument("--repeat", type=int, default=1, help="repeat each run this many times [1]")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which a run counts as hung [150]")
    parser.add_argument("--dense", type=int, default=5, help="sync runs that are also made with a dense model [5]")
    parser.add_argument("--keep", action="store_true", help="keep the directories of runs that failed")
    parser.add_argument("--binaries", type=Path, help="where `fleetrun` and `openfleet` are [target/release]")
    for dimension, values in DIMENSIONS.items():
        parser.add_argument(f"--{dimension}", choices=[str(value) for value in values], help=f"only this {dimension}")
    return parser.parse_args()


DIMENSIONS = {
    "mode": combinations.MODES,
    "victim": combinations.VICTIMS,
    "fault": combinations.FAULTS,
    "form": combinations.FORMS,
    "epochs": combinations.EPOCHS,
    "threads": combinations.THREADS,
}


def chosen(options: argparse.Namespace) -> list[tuple[int, Run]]:
    """Returns the selected runs with their indices."""
    if options.run:
        return [(1, Run.parse(options.run))]

    def is_wanted(what: combinations.Combination) -> bool:
        if what.fault == "none" and options.fault != "none":
            return False
        if what.form == "torch" and options.form != "torch":
            return False
        wanted = {dimension: getattr(options, dimension) for dimension in DIMENSIONS}
        return all(value is None or str(getattr(what, name)) == value for name, value in wanted.items())

    candidates = [what for what in combinations.every_combination() if is_wanted(what)]
    count = options.runs or (len(candidates) if options.fault == "none" else 300)
    if options.fault == "none":
        runs = [Run(what, options.seed) for what in candidates[:count]]
    else:
        runs = combinations.select(candidates, count, options.seed)
    numbered = list(enumerate(runs, 1))
    return [numbered[options.only - 1]] if options.only else numbered


def play(run: Run, place: Place, directory: Path) -> Result:
    if run.what.fault == "drop" and not place.dropper:
        return Result("skipped")
    directory.mkdir()
    return Job(run, place, directory).play()


def play_dense(run: Run, place: Place, directory: Path) -> str:
    """Applies the same fault to a job with dense parameters, and compares with an undisturbed job."""
    directory.mkdir()
    job = Job(run, place, directory / "disturbed", model="ctr_dnn")
    reference = job.undisturbed(directory / "undisturbed")
    ended = reference.play()
    if ended.outcome != "exact":
        return f"the undisturbed run ended as {ended.outcome}: {ended.detail}"
    ended = job.play()
    if ended.outcome != "exact":
        return f"{ended.outcome}: {ended.detail}"
    return job.dense_difference(reference.final)


def line(index: str, run: Run, result: Result) -> str:
    times = [("named", result.named), ("restarted", result.restarted)]
    parts = [f"{index}  {run.name:<52} {result.outcome:<8} restarts {result.restarts}  {result.seconds:5.1f} s"]
    parts += [f"{what} after {seconds:.2f} s" for what, seconds in times if seconds is not None]
    return "  ".join(parts) + (f"\n         {result.detail.strip()}" if result.detail else "")


def table(ended: list[tuple[Run, Result]]) -> str:
    """Prints the outcomes by mode and victim."""
    cells = collections.defaultdict(list)
    for run, result in ended:
        cells[run.what.mode, run.what.victim].append(result)

    def median(values: list[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{statistics.median(known):.2f} s" if known else "-"

    header = ("mode", "victim", *OUTCOMES, "named", "restarted")
    rows = []
    for mode in combinations.MODES:
        for victim in combinations.VICTIMS:
            results = cells.get((mode, victim))
            if results:
                counts = [sum(result.outcome == outcome for result in results) for outcome in OUTCOMES]
                times = [median([result.named for result in results]), median([result.restarted for result in results])]
                rows.append((mode, victim, *(str(count) if count else "." for count in counts), *times))
    counts = [sum(result.outcome == outcome for _, result in ended) for outcome in OUTCOMES]
    rows.append(("all", "", *map(str, counts), "", ""))
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in [header, *rows])


def main() -> int:
    options = arguments()
    root = Path(__file__).resolve().parents[2]
    dropper, reason = faults.dropper()
    binaries = (options.binaries or root / "target" / "release").resolve()
    place = Place(binaries, options.limit, dropper)
    for program in ("fleetrun", "openfleet"):
        if not (binaries / program).exists():
            print(f"there is no `{program}` in `{binaries}`: run `cargo build --release --package openfleet`")
            return 2
    runs = chosen(options)
    runs = [each for each in runs for _ in range(options.repeat)]
    if not dropper and any(run.what.fault == "drop" for _, run in runs):
        print(f"runs with dropped packets are skipped: {reason}")
    began = time.monotonic()
    ended: list[tuple[Run, Result]] = []
    dense_left = options.dense
    temporary = Path(tempfile.mkdtemp(prefix="openfleet-chaos-"))
    for at, (index, run) in enumerate(runs):
        directory = temporary / str(at)
        result = play(run, place, directory)
        ended.append((run, result))
        print(line(f"{index:3}/{len(runs)}", run, result), flush=True)
        what = run.what
        if dense_left and (what.mode, what.form) == ("sync", "cli") and what.fault not in ("none", "drop"):
            dense_left -= 1
            print(f"         dense parameters: {play_dense(run, place, temporary / f'{at}-dense')}", flush=True)
        if result.is_failure and options.keep:
            print(f"         kept in {directory}", flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
            shutil.rmtree(temporary / f"{at}-dense", ignore_errors=True)
    failed = [run for run, result in ended if result.is_failure]
    if not any(temporary.iterdir()):
        temporary.rmdir()
    print(f"\n{table(ended)}\n")
    print(f"{len(runs)} runs of seed {options.seed} in {time.monotonic() - began:.0f} s, {len(failed)} failed")
    for run in failed:
        print(f"  again: {Path(sys.argv[0])} --run {run.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
