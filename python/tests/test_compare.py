"""The pure parts of `make compare`: figures, tables, the section of the page, and the chart. No peer is needed."""

import importlib
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

COMPARISONS = Path(__file__).parents[2] / "comparisons"


@pytest.fixture(scope="module")
def modules():
    """The scripts are no package: their folder is on the path while they are loaded."""
    sys.path.insert(0, str(COMPARISONS))
    try:
        yield {name: importlib.import_module(name) for name in ["cases", "tables", "chart", "compare"]}
    finally:
        sys.path.remove(str(COMPARISONS))


def case(key, subject, peer, runs, against=None, failures=()):
    return {
        "key": key,
        "subject": subject,
        "peer": peer,
        "name": "two threads",
        "against": against,
        "runs": runs,
        "failures": list(failures),
    }


def run(number, rate, **others):
    figures = {"quality": 0.75, "cpu_seconds": 4.0, "peak_rss_bytes": 3 << 20, "loopback_bytes": 0, "seconds": 2.0}
    return {"round": number, "rate": rate, **figures, "other_cores": 0.1, **others}


@pytest.fixture
def result():
    ours = case("ours", "local", "openfleet", [run(1, 3000), run(2, 8000), run(3, 4000)])
    theirs = case(
        "theirs", "local", "torch", [run(1, 1000), run(3, 4000)], "ours", [{"round": 2, "reason": "exit code 1"}]
    )
    return {
        "date": "2030-01-02",
        "commit": "abc1234",
        "machine": {"cpu": "A CPU", "cores": 2, "memory_bytes": 8 << 30, "system": "Linux 6"},
        "versions": {"torch": "2.0"},
        "settings": {"rows": 1000, "batch": 512, "words": 500, "epochs": 2, "repeats": 3},
        "skipped": {"gensim": "it is not installed"},
        "cases": [ours, theirs],
    }


def test_a_table_has_medians_bests_and_ratios_of_common_rounds(modules, result):
    lines = modules["tables"].table("local", result["cases"], result["settings"]).splitlines()
    # 4 CPU seconds for 1,000 samples are 4,000 for a million; rounds 1 and 3 have the ratios 3 and 1.
    assert lines[2] == "| two threads | OpenFleet | 4,000 | 8,000 |  | 0.7500 | 4000 | 3 MiB |  |"
    assert lines[3] == "| two threads | PyTorch | 2,500 | 4,000 | 2.00 | 0.7500 | 4000 | 3 MiB |  |"


def test_bytes_are_per_sample_or_word(modules, result):
    tables, settings = modules["tables"], result["settings"]
    clicks = [case("ours", "servers", "openfleet", [run(1, 10, loopback_bytes=7_000)])]
    assert tables.table("servers", clicks, settings).endswith("| 7 |")
    words = [case("ours", "word2vec", "openfleet", [run(1, 10, loopback_bytes=7_000)])]
    assert tables.table("word2vec", words, settings).endswith("| 7 |")  # 500 words in two epochs


def test_startup_is_judged_by_seconds(modules, result):
    ours = case("ours", "startup", "openfleet", [run(1, None, seconds=0.5)])
    theirs = case("theirs", "startup", "paddle", [run(1, None, seconds=10.0)], "ours")
    lines = modules["tables"].table("startup", [ours, theirs], result["settings"]).splitlines()
    assert lines[3] == "| two threads | PaddlePaddle | 10.00 | 10.00 | 20.00 | 3 MiB |"


def test_nothing_is_dropped_silently(modules, result):
    result["cases"][1]["runs"] = []
    text = modules["tables"].section(result)
    assert "| two threads | PyTorch | failed |" in text
    assert "- gensim was skipped: it is not installed." in text
    assert "- CTR-DNN in one process, PyTorch, two threads: round 2 failed (exit code 1)." in text
    assert "2 cores of A CPU, 8 GiB of memory" in text


def test_runs_beside_other_programs_are_marked(modules, result):
    tables = modules["tables"]
    assert tables.disturbed(result) == []
    result["cases"][1]["runs"][0]["other_cores"] = 0.9
    assert tables.disturbed(result) == ["theirs"]
    text = tables.section(result)
    assert "| two threads * | PyTorch |" in text and "| two threads | OpenFleet |" in text
    assert "Lines with * are worth little" in text


def test_only_the_section_between_the_markers_changes(modules):
    tables = modules["tables"]
    page = f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n"
    once = tables.replace_section(page, "new")
    assert once == f"before\n{tables.BEGIN}\n\nnew\n\n{tables.END}\nafter\n"
    assert tables.replace_section(once, "new") == once
    for wrong in ["", tables.BEGIN, f"{tables.END}{tables.BEGIN}", page + page]:
        with pytest.raises(ValueError, match="expected `<!-- compare:begin -->`"):
            tables.replace_section(wrong, "new")


def test_the_chart_has_a_bar_per_case_in_proportion(modules, result):
    root = ElementTree.fromstring(modules["chart"].svg(result))
    space = "{http://www.w3.org/2000/svg}"
    bars = [float(bar.get("width")) for bar in root.iter(f"{space}rect") if bar.get("x")]
    assert len(bars) == 2
    assert bars[1] / bars[0] == pytest.approx(2500 / 4000, rel=1e-3)
    texts = [text.text for text in root.iter(f"{space}text")]
    assert texts[0] == "CTR-DNN in one process, samples/s"
    assert "4,000" in texts and "PyTorch, two threads" in texts


def test_a_chart_without_runs_says_so(modules, result):
    assert "No comparison is recorded here" in modules["chart"].svg({**result, "cases": []})


def test_spearman_is_the_correlation_of_ranks(modules):
    spearman = modules["tables"].spearman
    assert spearman([1, 2, 30], [5, 6, 7]) == pytest.approx(1)
    assert spearman([1, 2, 3], [9, 8, 7]) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5.
    assert spearman([1, 2, 2, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_the_summary_is_found_behind_the_name_of_a_process(modules):
    last_summary = modules["compare"].last_summary
    text = 'noise\n[worker 0] {"samples_per_second": 12.5}\nthe workers are done\n'
    assert last_summary(text) == {"samples_per_second": 12.5}
    assert last_summary("nothing here") is None


def test_every_peer_case_is_compared_with_one_of_ours_in_its_subject(modules, tmp_path):
    cases = modules["cases"]
    pythons = {name: tmp_path / name for name in ["torch", "torchrec", "paddle", "gensim"]}
    paths = [tmp_path / name for name in ["clicks", "few", "words", "binaries", "logs"]]
    built = cases.cases(cases.Inputs(*paths, pythons, network=("slow", "network")))
    by_key = {each.key: each for each in built}
    assert len(by_key) == len(built)
    assert {each.subject for each in built} == set(cases.SUBJECTS)
    for each in built:
        if each.peer == cases.OURS:
            assert each.against is None
        else:
            ours = by_key[each.against]
            assert (ours.peer, ours.subject) == (cases.OURS, each.subject)
    alone = cases.cases(cases.Inputs(*paths, {}))
    assert {each.peer for each in alone} == {cases.OURS}
