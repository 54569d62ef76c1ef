"""From the runs of `compare.py` to figures, Markdown tables and a section of a page. Pure: it reads and starts nothing.

A result is plain data, as in `compare.json`:

    {"date", "commit", "machine", "versions", "settings", "skipped": {peer: reason},
     "cases": [{"key", "subject", "peer", "name", "against", "runs": [{"round", "rate", "quality", "cpu_seconds", ...}],
                "failures": [{"round", "reason"}]}]}
"""

from __future__ import annotations

import math
from statistics import median

from cases import OURS, SUBJECTS
from peers import PEERS

#: The most cores that other programs may use during a run. Beyond it, ratios are unfair too: jobs of many processes
#: get a larger share of the cores, and threads that wait in a loop lose most.
QUIET = 0.3
BEGIN, END = "<!-- compare:begin -->", "<!-- compare:end -->"


def section(result: dict) -> str:
    """The tables of all subjects, with the machine, the versions and what was skipped."""
    parts = [introduction(result)]
    for subject, heading in SUBJECTS.items():
        cases = [case for case in result["cases"] if case["subject"] == subject]
        if cases:
            parts.append(f"### {heading}\n\n{table(subject, cases, result['settings'])}")
    missing = notes(result)
    if missing:
        parts.append(missing)
    return "\n\n".join(parts)


def introduction(result: dict) -> str:
    machine, settings = result["machine"], result["settings"]
    versions = ", ".join(f"{title_of(peer)} {version}" for peer, version in sorted(result["versions"].items()))
    busy = busiest(result)
    others = "" if busy is None else f" Other programs used at most {busy:.1f} cores during a run."
    if disturbed(result):
        others += f" **Lines with * are worth little: other programs used more than {QUIET} cores meanwhile.**"
    repeats = settings["repeats"]
    rounds = "One round" if repeats == 1 else f"{repeats} rounds"
    return (
        f"`make compare`, {result['date']}, commit {result['commit']}: {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB of memory, {machine['system']}. Beside OpenFleet: {versions}.\n\n"
        f"{settings['rows']:,} generated click records, one pass, batch size {settings['batch']}, Adam 1e-3; "
        f"{settings['words']:,} generated words. {rounds}; within a round all cases run in turns. A figure "
        "is the median of the rounds. *OpenFleet / peer* is the median of the ratios within a round, to the line of "
        f"OpenFleet that does the same.{others} CPU time is that of all processes from the call to the exit, with "
        "reading and evaluating. Memory is the largest sum of the resident memory of all processes at one moment. "
        "Bytes are those that the loopback device carried, with headers."
    )


def disturbed(result: dict) -> list[str]:
    """Keys of the cases with a run during which other programs used the machine."""
    return [case["key"] for case in result["cases"] if is_disturbed(case)]


def is_disturbed(case: dict) -> bool:
    return any(cores > QUIET for cores in values(case, "other_cores"))


def busiest(result: dict) -> float | None:
    """The most cores that other programs used during a run, if it was measured."""
    cores = [
        run["other_cores"] for case in result["cases"] for run in case["runs"] if run.get("other_cores") is not None
    ]
    return max(cores, default=None)


def table(subject: str, cases: list[dict], settings: dict) -> str:
    """The lines of one subject. A case without a successful run is a line that says so."""
    ours = {case["key"]: case for case in cases}
    if subject == "startup":
        head = ["job", "system", "seconds from the call to the exit", "best", "peer / OpenFleet", "memory"]
    else:
        unit, quality = ("words", "Spearman") if subject == "word2vec" else ("samples", "test AUC")
        head = ["job", "system", f"{unit}/s", "best", "OpenFleet / peer", quality]
        head += [f"CPU s per million {unit}", "memory", f"bytes per {unit[:-1]}"]
    rows = []
    for case in cases:
        first = [case["name"] + (" *" if is_disturbed(case) else ""), title_of(case["peer"])]
        if not case["runs"]:
            rows.append([*first, "failed", *[""] * (len(head) - 3)])
            continue
        against = ours.get(case["against"]) if case["against"] else None
        if subject == "startup":
            seconds = [run["seconds"] for run in case["runs"]]
            ratio = ratio_text(case, against, "seconds")
            rows.append([*first, f"{median(seconds):.2f}", f"{min(seconds):.2f}", ratio, memory_text(case)])
            continue
        rates = values(case, "rate")
        processed = settings["words"] * settings["epochs"] if subject == "word2vec" else settings["rows"]
        cpu = median(values(case, "cpu_seconds")) / processed * 1e6
        carried = values(case, "loopback_bytes")
        carried_text = f"{median(carried) / processed:,.0f}" if carried and median(carried) > processed else ""
        qualities = values(case, "quality")
        rows.append(
            [
                *first,
                f"{median(rates):,.0f}",
                f"{max(rates):,.0f}",
                ratio_text(case, against, "rate"),
                f"{median(qualities):.4f}" if qualities else "",
                f"{cpu:.2f}" if cpu < 10 else f"{cpu:.0f}",
                memory_text(case),
                carried_text,
            ]
        )
    return markdown(head, rows)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def values(case: dict, name: str) -> list[float]:
    return [run[name] for run in case["runs"] if run.get(name) is not None]


def memory_text(case: dict) -> str:
    return f"{median(values(case, 'peak_rss_bytes')) / 2**20:,.0f} MiB"


def ratio(case: dict, against: dict, name: str) -> float | None:
    """The median over the rounds of how many times better OpenFleet is; None if they have no round in common."""
    theirs = {run["round"]: run[name] for run in case["runs"] if run.get(name)}
    ours = {run["round"]: run[name] for run in against["runs"] if run.get(name)}
    rounds = sorted(theirs.keys() & ours.keys())
    pairs = [(ours[number], theirs[number]) for number in rounds]
    if not pairs:
        return None
    return median(their / our if name == "seconds" else our / their for our, their in pairs)


def ratio_text(case: dict, against: dict | None, name: str) -> str:
    found = ratio(case, against, name) if against else None
    return "" if found is None else f"{found:.2f}"


def notes(result: dict) -> str:
    """Peers that were left out and runs that failed."""
    lines = [f"- {title_of(peer)} was skipped: {reason}." for peer, reason in sorted(result["skipped"].items())]
    for case in result["cases"]:
        for failure in case["failures"]:
            what = f"{SUBJECTS[case['subject']]}, {title_of(case['peer'])}, {case['name']}"
            lines.append(f"- {what}: round {failure['round']} failed ({failure['reason']}).")
    return "\n".join(lines)


def title_of(peer: str) -> str:
    return "OpenFleet" if peer == OURS else PEERS[peer].title


def replace_section(page: str, text: str) -> str:
    """The page with `text` between the markers. Fails if it does not have each marker once, in order."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"expected `{BEGIN}` and, after it, `{END}`, once each")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}"


def spearman(first: list[float], second: list[float]) -> float:
    """The correlation of the ranks; equal values share their mean rank."""
    a, b = ranks(first), ranks(second)
    mean = (len(a) + 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    variances = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return covariance / math.sqrt(variances) if variances else 0.0


def ranks(numbers: list[float]) -> list[float]:
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    found = [0.0] * len(numbers)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and numbers[order[end]] == numbers[order[start]]:
            end += 1
        for place in order[start:end]:
            found[place] = (start + 1 + end) / 2
        start = end
    return found


def similarity_quality(vectors: dict[str, list[float]], pairs: list[tuple[str, str, float]]) -> float:
    """Spearman of the cosines of the pairs whose words are known with their true similarities."""
    known = [(vectors[a], vectors[b], score) for a, b, score in pairs if a in vectors and b in vectors]
    return spearman([cosine(a, b) for a, b, _ in known], [score for _, _, score in known])


def cosine(a: list[float], b: list[float]) -> float:
    norms = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b)) / norms if norms else 0.0
