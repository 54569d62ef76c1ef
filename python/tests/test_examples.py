"""Runs the examples, alone and as jobs, and compares with the results in their docs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = ["-m", "openfleet.launch", "--server_num=2", "--worker_num=2"]
RANKS = ["-m", "openfleet.launch", "--nproc_per_node=2"]


def run(directory, *command):
    done = subprocess.run(
        [sys.executable, *command], cwd=directory, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def click_data(tmp_path_factory):
    """The data that the examples would generate themselves, once for all of them."""
    directory = tmp_path_factory.mktemp("clicks") / "click-data"
    amounts = ["--rows", "40000", "--test-rows", "10000", "--ids", "20000", "--seed", "1"]
    run(directory.parent, "-m", "openfleet", "gen", "criteo", *amounts, "--out", str(directory))
    return directory


@pytest.mark.parametrize("launch", [[], JOB, RANKS], ids=["alone", "job", "ranks"])
@pytest.mark.parametrize("name", ["wide_deep", "ctr_dnn", "deepfm"])
def test_a_click_example_reaches_the_auc_in_its_docs(tmp_path, click_data, name, launch):
    said = run(tmp_path, *launch, str(EXAMPLES / name / "train.py"), f"--data={click_data}")
    page = (EXAMPLES / name / "README.md").read_text()
    assert "| expected test AUC |" in page
    expected = [float(auc) for auc in re.findall(r"^\|[^|]*\| (0\.\d+) \|", page, re.M)]
    (found,) = re.findall(r"test AUC (0\.\d+)", said)
    assert expected and float(found) > min(expected) - 0.02, said
    inferred = run(tmp_path, str(EXAMPLES / name / "infer.py"), f"--data={click_data}")
    (again,) = re.findall(r"test AUC (0\.\d+) of 10000 rows", inferred)
    assert float(again) == pytest.approx(float(found), abs=0.002), inferred


# Workers share the text: one pass of two workers covers it once, like one pass of one process.
@pytest.mark.parametrize("launch", [[], JOB], ids=["alone", "job"])
def test_the_word2vec_example_finds_the_similarities_of_its_text(tmp_path, launch):
    said = run(tmp_path, *launch, str(EXAMPLES / "word2vec" / "train.py"), "--epochs=4")
    (found,) = re.findall(r"rank correlation (0\.\d+)", said)
    assert float(found) > 0.5, said
    assert len(run(tmp_path, str(EXAMPLES / "word2vec" / "infer.py")).splitlines()) == 5


@pytest.mark.parametrize("launch", [[], RANKS], ids=["alone", "ranks"])
def test_the_digits_example_reaches_the_accuracy_in_its_docs(tmp_path, launch):
    said = run(tmp_path, *launch, str(EXAMPLES / "digits" / "train.py"))
    expected = re.findall(
        r"^\| (?:one process|two ranks) \| (0\.\d+) \|", (EXAMPLES / "digits" / "README.md").read_text(), re.M
    )
    (found,) = re.findall(r"test accuracy (0\.\d+)", said)
    assert len(expected) == 2 and float(found) > float(min(expected)) - 0.02, said
    assert (tmp_path / "digits-model" / "manifest.json").exists()


def test_every_example_is_short():
    scripts = sorted(EXAMPLES.glob("*/*.py"))
    assert len(scripts) == 10
    for script in scripts:
        assert len(script.read_text().splitlines()) < 80, script
