"""OpenFleet beside other systems: same data, model, batch size and threads, in turns. `make compare` runs it.

    python comparisons/compare.py                             # all cases, three rounds: about 25 minutes on two cores
    python comparisons/compare.py --quick                     # a few rows, one round: shows that every case works
    python comparisons/compare.py --only servers,ranks --peers torch --rows 100000

Peers are installed into environments of their own (`--venvs`); one that cannot be installed is skipped, and the
result says so. A full run rewrites `docs/benchmarks/compare.json`, the tables between the markers of
`docs/benchmarks.md`, and the chart `docs/images/compare.svg`, unless other programs used the machine meanwhile: such
figures do not belong there. A run of a part writes the same three files into `target/compare/results`, unless `--out`
names another directory.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import chart
import tables
from cases import EPOCHS, SUBJECTS, Case, Inputs, cases
from peers import PEERS, Ready, prepare

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
STATE = ROOT / "target" / "compare"
BATCH = 512
#: What a run keeps of `measure.py`.
KEPT = ["seconds", "cpu_seconds", "peak_rss_bytes", "loopback_bytes", "other_cores"]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names(SUBJECTS), help=f"subjects, separated by commas: {', '.join(SUBJECTS)}")
    parser.add_argument("--peers", type=names(PEERS), help=f"peers, separated by commas: {', '.join(PEERS)}")
    parser.add_argument("--repeats", type=int, help="rounds [3; with --quick 1]")
    parser.add_argument("--rows", type=int, help="click records [500000; with --quick 40000]")
    parser.add_argument("--words", type=int, help="words of the text [2000000; with --quick 200000]")
    parser.add_argument("--quick", action="store_true", help="a short run that shows that every case works")
    parser.add_argument("--network", default="", help="a command that runs the job after it within a slow network")
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a run is ended [600]")
    parser.add_argument("--venvs", type=Path, default=STATE, help="directory with one environment per peer")
    parser.add_argument("--no-install", action="store_true", help="use only peers that are installed already")
    parser.add_argument("--binaries", type=Path, default=ROOT / "target" / "release")
    parser.add_argument("--out", type=Path, help="directory for the tables, the JSON and the chart")
    parser.add_argument("--redraw", action="store_true", help="write tables and chart again from the JSON; run nothing")
    args = parser.parse_args()
    args.repeats = args.repeats or (1 if args.quick else 3)
    args.rows = args.rows or (40_000 if args.quick else 500_000)
    args.words = args.words or (200_000 if args.quick else 2_000_000)
    part = args.quick or args.only or args.peers
    args.to_docs = not (args.out or part)
    args.out = args.out or (STATE / "results" if part else ROOT / "docs")
    return args


def names(known):
    """A list of names, each of which must be known."""

    def parse(text: str) -> list[str]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        unknown = [part for part in parts if part not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
        return parts

    return parse


def main() -> None:
    args = options()
    if args.redraw:
        write(json.loads((args.out / "benchmarks" / "compare.json").read_text()), args.out)
        return
    binary = args.binaries / "openfleet"
    if not binary.exists():
        sys.exit(f"there is no `{binary}`; `cargo build --release --package openfleet` builds it")
    ready, skipped = prepare_peers(args)
    chosen = [case for case in cases(inputs(args, ready)) if not args.only or case.subject in args.only]
    records = {case.key: record(case) for case in chosen}
    result = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": {name: peer.version for name, peer in ready.items()},
        "settings": {
            "rows": args.rows,
            "batch": BATCH,
            "words": args.words,
            "epochs": EPOCHS,
            "repeats": args.repeats,
            "network": args.network,
        },
        "skipped": skipped,
        "cases": list(records.values()),
    }
    total = args.repeats * len(chosen)
    for number in range(1, args.repeats + 1):
        for index, case in enumerate(chosen):
            done = (number - 1) * len(chosen) + index + 1
            print(f"[{done}/{total}] {case.key}: ", end="", flush=True)
            run_case(args, case, number, records[case.key])
    if args.to_docs and tables.disturbed(result):
        print("other programs were busy: the documentation is left as it is (`--out docs` writes there all the same)")
        args.out = STATE / "results"
    write(result, args.out)
    report(result, args.out)


def prepare_peers(args: argparse.Namespace) -> tuple[dict[str, Ready], dict[str, str]]:
    """The peers that are there, and the reasons why others are not."""
    ready, skipped = {}, {}
    for name in args.peers or PEERS:
        peer = prepare(name, args.venvs, install=not args.no_install)
        if isinstance(peer, Ready):
            ready[name] = peer
            print(f"{PEERS[name].title} {peer.version}")
        else:
            skipped[name] = peer.reason
            print(f"{PEERS[name].title} is skipped: {peer.reason}")
    return ready, skipped


def inputs(args: argparse.Namespace, ready: dict[str, Ready]) -> Inputs:
    """Generates the data that is not there yet."""
    data, logs = STATE / "data", STATE / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    test_rows = min(100_000, max(2_000, args.rows // 10))
    clicks = generate(args, data / f"clicks-{args.rows}", "criteo", clicks_options(args.rows, test_rows))
    few = generate(args, data / "clicks-few", "criteo", clicks_options(2_048, 1_024))
    vocabulary = ["--words", str(args.words), "--vocabulary", "30000", "--seed", "1"]
    words = generate(args, data / f"words-{args.words}", "words", vocabulary)
    pythons = {name: peer.python for name, peer in ready.items()}
    network = tuple(shlex.split(args.network))
    return Inputs(clicks, few, words, args.binaries.resolve(), logs, pythons, BATCH, network)


def clicks_options(rows: int, test_rows: int) -> list[str]:
    words = ["--rows", str(rows), "--test-rows", str(test_rows), "--ids", "1000000", "--seed", "1"]
    return [*words, "--formats", "multislot"]


def generate(args: argparse.Namespace, directory: Path, kind: str, words: list[str]) -> Path:
    # The generator writes meta.json last.
    if not (directory / "meta.json").exists():
        print(f"generating {directory.name}", flush=True)
        command = [str(args.binaries / "openfleet"), "gen", kind, *words, "--out", str(directory)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return directory


def record(case: Case) -> dict:
    described = {name: getattr(case, name) for name in ["key", "subject", "peer", "name", "against"]}
    command = shlex.join(case.command).replace(str(ROOT) + "/", "")
    return {**described, "command": command, "runs": [], "failures": []}


def run_case(args: argparse.Namespace, case: Case, number: int, into: dict) -> None:
    """Runs a case once and adds a run or a failure to its record."""
    log = STATE / "logs" / f"{case.key}-{number}"
    measured_file = log.with_suffix(".json")
    command = [sys.executable, str(HERE / "measure.py"), str(measured_file), "--timeout", str(args.timeout)]
    if case.subject == "slow_network":
        command.append("--no-namespace")
    # `fleetrun` finds `openfleet` beside itself; peers find nothing of ours in this path.
    environment = {**os.environ, **case.environment, "PYTHONWARNINGS": "ignore"}
    with log.with_suffix(".out").open("w") as out, log.with_suffix(".err").open("w") as err:
        subprocess.run([*command, "--", *case.command], stdout=out, stderr=err, env=environment)
    measured = json.loads(measured_file.read_text()) if measured_file.exists() else {}
    summary = last_summary(log.with_suffix(".out").read_text(errors="replace"))
    if measured.get("exit_code") != 0 or measured.get("timed_out") or summary is None:
        reason = failure(measured, args.timeout)
        into["failures"].append({"round": number, "reason": reason})
        print(f"FAILED: {reason}")
        tail = log.with_suffix(".err").read_text(errors="replace").splitlines()[-15:]
        print("\n".join(f"    {line}" for line in tail) or "    (no output)", flush=True)
        return
    run = {
        "round": number,
        "rate": summary.get("words_per_second") or summary["samples_per_second"],
        "quality": summary.get("test_auc"),
        **{name: measured[name] for name in KEPT},
    }
    if case.vectors:
        run["quality"] = vectors_quality(case.vectors, args.words)
    if case.subject == "startup":
        del run["rate"], run["quality"]
        print(f"{run['seconds']:.2f} s", flush=True)
    else:
        quality = "" if run["quality"] is None else f", quality {run['quality']:.4f}"
        print(f"{run['rate']:,.0f}/s{quality}, {run['seconds']:.0f} s", flush=True)
    into["runs"].append(run)


def failure(measured: dict, timeout: float) -> str:
    if measured.get("timed_out"):
        return f"it was ended after {timeout:.0f} s"
    code = measured.get("exit_code")
    return "it printed no result" if code == 0 else f"exit code {code}"


def last_summary(text: str) -> dict | None:
    """The last line of JSON with a rate; `fleetrun` writes the name of the process before it."""
    for line in reversed(text.splitlines()):
        if "_per_second" in line and "{" in line:
            return json.loads(line[line.index("{") :])
    return None


def vectors_quality(path: Path, words: int) -> float:
    """Spearman with the true similarities; both systems write word2vec's text format."""
    pairs = []
    for line in (STATE / "data" / f"words-{words}" / "pairs.tsv").read_text().splitlines():
        first, second, score = line.split("\t")[:3]
        pairs.append((first, second, float(score)))
    wanted = {word for first, second, _ in pairs for word in (first, second)}
    vectors = {}
    with path.open(encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            word, _, rest = line.partition(" ")
            if word in wanted:
                vectors[word] = [float(number) for number in rest.split()]
    return tables.similarity_quality(vectors, pairs)


def machine() -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0))
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return {"cpu": model, "cores": cores, "memory_bytes": memory, "system": system, "python": platform.python_version()}


def commit() -> str:
    """The commit that was measured; `+` if files of it were changed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def write(result: dict, out: Path) -> None:
    """The JSON, the tables and the chart."""
    saved, image, page = out / "benchmarks" / "compare.json", out / "images" / "compare.svg", out / "benchmarks.md"
    for path in [saved, image]:
        path.parent.mkdir(parents=True, exist_ok=True)
    saved.write_text(json.dumps(result, indent=1) + "\n")
    image.write_text(chart.svg(result))
    before = page.read_text() if page.exists() else f"{tables.BEGIN}\n{tables.END}\n"
    page.write_text(tables.replace_section(before, tables.section(result)))


def report(result: dict, out: Path) -> None:
    """What a reader of the terminal needs: the tables, what failed, and where the files are."""
    print(f"\n{tables.section(result)}\n\nwritten to {out}: benchmarks.md, benchmarks/compare.json, images/compare.svg")
    failed = [case["key"] for case in result["cases"] if case["failures"]]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; logs in {STATE / 'logs'}")


if __name__ == "__main__":
    main()
