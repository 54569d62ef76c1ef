"""Checkpoints in a bucket: real requests to an S3 server that the tests start."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import openfleet
from openfleet import static


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def request(method: str, url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, method=method)) as answer:
        return answer.read()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    """The address of an S3 server that forgets everything at the end."""
    port, log = free_port(), tmp_path_factory.mktemp("moto") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with open(log, "w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        while not answers(port):
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def bucket(endpoint, monkeypatch, request_name):
    """A bucket of the test's own, and the variables that lead there."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    request("PUT", f"{endpoint}/{request_name}")
    return f"s3://{request_name}"


@pytest.fixture
def request_name(request):
    return re.sub("[^a-z0-9]+", "-", request.node.name)[:50].strip("-")


def keys(endpoint: str, bucket: str) -> list[str]:
    """What is in a bucket, by a request that is not ours."""
    listed = request("GET", f"{endpoint}/{bucket.removeprefix('s3://')}")
    return sorted(re.findall("<Key>([^<]*)</Key>", listed.decode()))


def openfleet_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openfleet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def said(run: subprocess.CompletedProcess[str]) -> str:
    return run.stdout + run.stderr


def model():
    slot, label = static.data("id", [None, 1], "int64", lod_level=1), static.data("label", [None, 1], "int64")
    x = static.nn.embedding(slot, size=[1000, 4], is_sparse=True)
    probability = static.nn.fc(static.nn.fc(x, size=8, activation="relu"), size=1, activation="sigmoid")
    loss = static.nn.mean(static.nn.log_loss(probability, static.nn.cast(label, "float32")))
    return loss, probability


def batch(step: int) -> dict[str, object]:
    return {"id": [[step % 7, 50], [step % 5 + 20], [90]], "label": np.array([[1], [0], [step % 2]])}


def test_training_resumes_from_a_bucket_exactly(bucket, endpoint):
    loss, probability = model()
    main, startup = static.default_main_program(), static.default_startup_program()
    static.optimizer.Adam(0.05).minimize(loss)
    exe = static.Executor()
    exe.run(startup)

    def steps(of):
        return [exe.run(main, feed=batch(step), fetch_list=[loss])[0].item() for step in of]

    steps(range(5))
    static.save(main, f"{bucket}/models/first")
    expected = steps(range(5, 10))
    names = keys(endpoint, bucket)
    assert "models/first/manifest.json" in names and not any("saving" in name for name in names), names
    with static.scope_guard(static.Scope()):
        static.load(main, f"{bucket}/models/first", exe)
        assert steps(range(5, 10)) == expected
        static.save(main, f"{bucket}/models/first/")
        replaced = keys(endpoint, bucket)
        assert len(replaced) == len(names) and replaced != names, "the older one is gone"
        with pytest.raises(FileExistsError, match="models/first"):
            static.save(main, f"{bucket}/models/first", replace=False)
        # For prediction, by the executor and from mapped rows.
        static.save_inference_model(f"{bucket}/served", ["id"], [probability], exe)
        (expected,) = exe.run(main.clone(for_test=True), feed=batch(3), fetch_list=[probability])
    (got,) = openfleet.Predictor(f"{bucket}/served").predict({"id": batch(3)["id"]})
    assert np.array_equal(got, expected)
    assert static.load_program_state(f"{bucket}/served").keys() >= {"fc_0.w_0"}


JOB = """
import sys
import openfleet.fleet as fleet
from openfleet import models, static

place, resumes = sys.argv[1], len(sys.argv) > 2
fleet.init()
slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(3)]
dense, label = static.data("dense", [None, 2]), static.data("label", [None, 1], "int64")
model = models.wide_deep(slots, dense, label, hidden=[8])
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
fleet.distributed_optimizer(static.optimizer.Adam(0.05), strategy).minimize(model.loss)
if fleet.is_server():
    fleet.init_server(place if resumes else None)
    fleet.run_server()
    sys.exit()
exe = static.Executor()
exe.run(static.default_startup_program())
fleet.init_worker()
for step in range(10, 20) if resumes else range(10):
    feed = {f"C{i}": [[step % (3 + i)], [step % (5 + i) + fleet.worker_index()]] for i in range(3)}
    feed.update({"dense": [[0.1, step % 3], [step % 2, 0.4]], "label": [[0], [1]]})
    exe.run(feed=feed, fetch_list=[model.loss])
fleet.barrier_worker()
fleet.save_persistables(exe, place)
fleet.stop_worker()
"""


def test_a_job_of_two_servers_and_two_workers_saves_to_a_bucket_and_resumes(tmp_path, bucket):
    (tmp_path / "job.py").write_text(JOB)
    place = f"{bucket}/job"
    for arguments, step in (([place], 10), ([place, "resume"], 20)):
        command = [sys.executable, "-m", "openfleet.launch", "--server_num=2", "--worker_num=2", "job.py", *arguments]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, said(run)
        assert "very-secret" not in said(run)
        verified = openfleet_command("verify", place)
        assert verified.returncode == 0 and f"step {step}" in verified.stdout, said(verified)
    assert "starts from step 10" in said(run)
    assert not (tmp_path / "s3:").exists()
    inspected = openfleet_command("inspect", place, "--json")
    assert inspected.returncode == 0, said(inspected)
    table = json.loads(inspected.stdout)["tables"][0]["name"]
    resharded = openfleet_command("reshard", place, "--server-num", "3", "--out", f"{bucket}/three")
    assert resharded.returncode == 0, said(resharded)
    same = openfleet_command("diff", place, f"{bucket}/three")
    assert same.returncode == 0, said(same)
    out = str(tmp_path / "rows.npz")
    exported = openfleet_command("export", place, "--table", table, "--format", "npz", "--out", out)
    assert exported.returncode == 0, said(exported)
    key = str(np.load(out)["keys"][0])
    found = openfleet_command("lookup", place, key, "--table", table)
    assert found.returncode == 0 and key in found.stdout, said(found)


def test_the_program_trains_saves_resumes_and_infers_from_a_bucket(tmp_path, bucket, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = openfleet_command("gen", "criteo", "--rows", "2000", "--test-rows", "200", "--seed", "1", "--out", "clicks")
    assert made.returncode == 0, said(made)
    train = ["train", "--model", "deepfm", "--train", "clicks/train/*.txt", "--threads", "1", "--batch", "50"]
    save = ["--save", f"{bucket}/deepfm", "--save-every", "20", "--resume", "--quiet"]
    first = openfleet_command(*train, *save)
    assert first.returncode == 0 and "no checkpoint to resume from" in first.stderr, said(first)
    assert "saved step" in first.stderr, said(first)
    again = openfleet_command(*train, *save, "--epochs", "2")
    assert again.returncode == 0 and "no checkpoint to resume from" not in again.stderr, said(again)
    infer = openfleet_command("infer", f"{bucket}/deepfm", "--data", "clicks/test/*.txt")
    assert infer.returncode == 0 and "AUC" in infer.stdout.upper(), said(infer)
    request("PUT", f"{os.environ['AWS_ENDPOINT_URL']}/{bucket.removeprefix('s3://')}/other/file")
    foreign = openfleet_command(*train, "--save", f"{bucket}/other")
    assert foreign.returncode == 1 and "exists and is not a saved model" in foreign.stderr, said(foreign)


def test_a_missing_bucket_is_named(bucket):
    model()
    static.Executor().run(static.default_startup_program())
    with pytest.raises(
        FileNotFoundError, match=r"no-such-bucket/m[^~]*bucket does not exist[^~]*hint: create the bucket"
    ):
        static.save(static.default_main_program(), "s3://no-such-bucket/m")
    with pytest.raises(FileNotFoundError, match=r"s3://no-such-bucket/m[^~]*bucket does not exist"):
        static.load(static.default_main_program(), "s3://no-such-bucket/m")
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        static.load(static.default_main_program(), f"{bucket}/nothing-here")
    run = openfleet_command("verify", "s3://no-such-bucket/m")
    assert run.returncode == 1 and "hint: create the bucket first" in run.stderr, said(run)


def test_an_unreachable_s3_endpoint_is_an_error_with_its_address(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(OSError, match=r"s3://b/m[^~]*Connection refused[^~]*hint: [^~]*AWS_ENDPOINT_URL") as error:
        static.load(static.default_main_program(), "s3://b/m")
    assert "very-secret" not in str(error.value)


def test_invalid_s3_settings_fail_immediately(bucket, monkeypatch):
    program = static.default_main_program()
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(OSError, match="AWS_ALLOW_HTTP=true"):
        static.load(program, f"{bucket}/m")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(OSError, match=r"could not be set up[^~]*hint: set `AWS_ACCESS_KEY_ID`"):
        static.load(program, f"{bucket}/m")
    for address in ("hdfs://there/m", Path("s3://bucket/m")):
        with pytest.raises(ValueError, match=r"hint: give a path, or an address that begins with `file://`, `s3://`"):
            static.load(program, address)


def test_storage_that_is_not_built_in_names_its_feature():
    with pytest.raises(ValueError, match="feature `gcs`"):
        static.load(static.default_main_program(), "gs://bucket/m")


def test_a_multipart_file_is_read_back_bit_for_bit(bucket, endpoint):
    static.nn.fc(static.data("x", [None, 4000]), size=1200)  # 19 MB: three parts of 8 MiB and less
    exe, program = static.Executor(), static.default_main_program()
    exe.run(static.default_startup_program())
    expected = np.array(static.global_scope().find_var("fc_0.w_0").get_tensor())
    static.save(program, f"{bucket}/large")
    with static.scope_guard(static.Scope()):
        static.load(program, f"{bucket}/large", exe)
        assert np.array_equal(np.array(static.global_scope().find_var("fc_0.w_0").get_tensor()), expected)
    state = static.load_program_state(f"{bucket}/large")
    assert np.array_equal(state["fc_0.w_0"], expected)
    unfinished = request("GET", f"{endpoint}/{bucket.removeprefix('s3://')}?uploads").decode()
    assert "<UploadId>" not in unfinished, unfinished


def test_compacting_a_chain_of_saves_in_a_bucket(bucket, endpoint):
    loss, _ = model()
    main, startup = static.default_main_program(), static.default_startup_program()
    static.optimizer.Adam(0.05).minimize(loss)
    exe = static.Executor()
    exe.run(startup)
    for step in range(9):
        exe.run(main, feed=batch(step), fetch_list=[loss])
        if step % 3 == 2:
            manifest = static.save(main, f"{bucket}/chain", mode="delta")
    assert len(manifest["layers"]) == 2
    static.save(main, f"{bucket}/whole")
    compacted = openfleet_command("compact", f"{bucket}/chain")
    assert compacted.returncode == 0 and "3 saves" in compacted.stdout, said(compacted)
    directories = {key.split("/")[1] for key in keys(endpoint, bucket) if key.startswith("chain/data-")}
    assert len(directories) == 1, "the older saves are gone"
    diff = openfleet_command("diff", f"{bucket}/chain", f"{bucket}/whole")
    assert diff.returncode == 0 and " 0 changed" in diff.stdout and "0 gone" in diff.stdout, said(diff)
    # The job that wrote the chain continues with delta saves.
    exe.run(main, feed=batch(9), fetch_list=[loss])
    assert len(static.save(main, f"{bucket}/chain", mode="delta")["layers"]) == 1
