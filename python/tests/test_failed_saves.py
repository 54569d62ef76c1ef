"""Saves to a path that cannot be written: the save raises, and training continues and can save elsewhere."""

import subprocess

import pytest
from test_job_scope import launch, told

import openfleet.fleet as fleet
from openfleet import static


@pytest.fixture
def full(tmp_path):
    """A directory on a file system without a byte left."""
    path = tmp_path / "full"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or error
        print(f"skipped: a file system in memory cannot be mounted here: {why}")
        pytest.skip(f"a file system in memory cannot be mounted here: {why}")
    (path / "ballast").write_bytes(b"x" * (64 << 10))
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=False)


def test_alone_a_save_that_fails_raises_and_the_next_one_works(tmp_path, full, click_model):
    fleet.init()
    model = click_model()
    fleet.distributed_optimizer(static.optimizer.SGD(0.1)).minimize(model.loss)
    exe = static.Executor()
    exe.run(fleet.startup_program)
    fleet.init_worker()
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(OSError, match="file/model.*failed"):
        fleet.save_persistables(exe, tmp_path / "file" / "model")
    with pytest.raises(OSError, match="No space left on device"):
        fleet.save_persistables(exe, full / "model")
    fleet.save_persistables(exe, tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "manifest.json").exists()
    fleet.stop_worker()


@pytest.mark.parametrize("a_sync", [True, False])
def test_with_servers_a_save_that_fails_raises_and_the_next_one_works(tmp_path, full, a_sync):
    text = """
import openfleet
open("file", "w").close()
fleet.init_worker()
step()
for place in ("file/model", "full/model"):
    try:
        fleet.save_persistables(exe, place)
        print("now saved to", place, flush=True)
    except openfleet.Error as error:
        print("now refused", place, place in str(error), flush=True)
    step()
fleet.save_persistables(exe, "model")
step()
show("now trained")
static.load_persistables(exe, "model")
show("now loaded")
fleet.stop_worker()
"""
    said = told(launch(tmp_path, text, a_sync, servers=2))
    assert said == [
        "now refused file/model True",
        "now refused full/model True",
        "now trained -4.0",
        "now loaded -3.0",
    ]
