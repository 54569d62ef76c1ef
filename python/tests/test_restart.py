"""Restarts: real scripts in real processes that crash, end and are started again."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import environment, free_ports

# Every id of a sample adds -1 to its row: after training a row is minus the number of times its id occurred.
COUNTER = """
import os, sys, time
import numpy as np
import openfleet.fleet as fleet
from openfleet import static

fleet.init()
ids = static.data("ids", [None, 1], "int64", lod_level=1)
table = static.ParamAttr(name="counter", initializer=static.initializer.Constant(0.0))
rows = static.nn.sparse_embedding(ids, [1 << 20, 1], param_attr=table, pooling="sum")
loss = static.nn.scale(static.nn.sum(rows), scale=SCALE)
test = static.default_main_program().clone(for_test=True)
strategy = fleet.DistributedStrategy()
for name, value in STRATEGY.items():
    setattr(strategy, name, value)
fleet.distributed_optimizer(static.optimizer.SGD(1.0), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server(*sys.argv[1:2])
    fleet.run_server()
    sys.exit()
exe = static.Executor()
exe.run(static.default_startup_program())
fleet.init_worker()

def counts():
    (values,) = exe.run(test, feed={"ids": [[key] for key in range(5)]}, fetch_list=[rows])
    return [round(float(value)) for value in values[:, 0]]
"""

STEPS = """
for step in range(60):
    exe.run(feed={"ids": [[step % 5, 4]]}, fetch_list=[loss])
    print(f"step {step}", flush=True)
    time.sleep(PAUSE)
fleet.barrier_worker()
if fleet.is_first_worker():
    print(f"counts {counts()}", flush=True)
"""

# 60 steps of two workers. Each worker has every id 12 times, and id 4 once more in every step.
TWO_WORKERS = "counts [-24, -24, -24, -24, -144]"
SYNC = {"a_sync": False}


def script(directory, text, mode=SYNC, scale=2.0, pause=0.0, name="job.py"):
    head = f"SCALE, STRATEGY, PAUSE = {scale}, {mode!r}, {pause}\n"
    path = directory / name
    path.write_text(head + COUNTER + text)
    return str(path)


def launch(directory, path, *arguments, options=(), workers=2):
    command = [sys.executable, "-m", "openfleet.launch", "--server_num=2", f"--worker_num={workers}", *options]
    return subprocess.run(
        [*command, path, *arguments],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.parametrize("mode, scale", [(SYNC, 2.0), ({"a_sync": True}, 1.0)])
def test_a_script_without_stop_worker_departs_when_it_succeeds(tmp_path, mode, scale):
    ran = launch(tmp_path, script(tmp_path, STEPS, mode, scale))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert TWO_WORKERS in ran.stdout
    # The servers were notified and shut down by themselves.
    assert ran.stdout.count("of 2: ended") == 2, ran.stdout + ran.stderr


@pytest.mark.parametrize("ending", ["raise ValueError('no')", "sys.exit(3)"])
def test_a_script_that_fails_does_not_depart(tmp_path, ending):
    text = f"""
if fleet.worker_index() == 1:
    {ending}
fleet.barrier_worker()
"""
    ran = launch(tmp_path, script(tmp_path, text))
    assert ran.returncode == (3 if "3" in ending else 1), ran.stdout + ran.stderr
    assert "worker 1" in ran.stderr


@pytest.mark.parametrize("mode, scale", [(SYNC, 2.0), ({"a_sync": True}, 1.0)])
def test_a_job_starts_from_the_checkpoint_of_another_job(tmp_path, mode, scale):
    """Another run takes the values and skips none of its own data, with equal mode, workers and threads."""
    saves = STEPS + "    fleet.save_persistables(exe, 'yesterday')\n"
    ran = launch(tmp_path, script(tmp_path, saves, mode, scale))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    ran = launch(tmp_path, script(tmp_path, STEPS, mode, scale), "yesterday")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "counts [-48, -48, -48, -48, -288]" in ran.stdout
    assert "skipped" not in ran.stderr


def test_a_restarted_worker_resumes_without_training_a_row_twice(tmp_path):
    text = """
marker = "failed.once"
for step in range(60):
    if step == 30 and fleet.worker_index() == 1 and not os.path.exists(marker):
        open(marker, "w").close()
        raise RuntimeError("this fails once")
    exe.run(feed={"ids": [[step % 5, 4]]}, fetch_list=[loss])
fleet.barrier_worker()
if fleet.is_first_worker():
    print(f"counts {counts()}", flush=True)
"""
    ran = launch(tmp_path, script(tmp_path, text), options=["--max-restarts=1"])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert TWO_WORKERS in ran.stdout
    assert "(restart 1 of 1) and resumes where it was" in ran.stderr
    assert "30 batches will be skipped" in ran.stdout + ran.stderr


def test_a_save_that_was_complete_is_not_repeated_under_its_old_name(tmp_path):
    text = """
for step in range(20):
    exe.run(feed={"ids": [[step % 5, 4]]}, fetch_list=[loss])
fleet.barrier_worker()
if fleet.is_first_worker():
    fleet.save_persistables(exe, "half")
    print(f"saved at {os.path.getmtime('half/manifest.json')}", flush=True)
fleet.barrier_worker()
if fleet.is_first_worker() and not os.path.exists("failed.once"):
    open("failed.once", "w").close()
    sys.exit(1)
for step in range(40):
    exe.run(feed={"ids": [[step % 5, 4]]}, fetch_list=[loss])
fleet.barrier_worker()
if fleet.is_first_worker():
    print(f"counts {counts()}", flush=True)
"""
    ran = launch(tmp_path, script(tmp_path, text), options=["--max-restarts=1"])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert TWO_WORKERS in ran.stdout
    times = {line for line in ran.stdout.splitlines() if "saved at" in line}
    assert len(times) == 1, ran.stdout


# Files of 500 rows with one id each. The test chooses one worker that dies once.
PASSES = """
from pathlib import Path
from openfleet.dataset import InMemoryDataset, QueueDataset

if fleet.is_first_worker():
    for part in range(2):
        text = "".join(f"1 {row % 5}\\n" for row in range(500))
        Path(f"writing-{part}").write_text(text)
        os.replace(f"writing-{part}", f"part-{part}.txt")
fleet.barrier_worker()
files = fleet.util.get_file_shard(["part-0.txt", "part-1.txt"])

def die_once(rank):
    if fleet.worker_index() == rank and not os.path.exists("died.once"):
        Path("died.once").touch()
        os.kill(os.getpid(), 9)

def train(kind, shuffle=lambda data: None, passes=3, dies=None):
    data = kind()
    data.init(batch_size=4, thread_num=1, use_var=[ids])
    data.set_filelist(files)
    if kind is InMemoryDataset:
        data.load_into_memory()
    for number in range(passes):
        shuffle(data)
        exe.train_from_dataset(dataset=data)
        if number == 1:
            die_once(dies)
"""

ENDING = """
fleet.barrier_worker()
if fleet.is_first_worker():
    print(f"counts {counts()}", flush=True)
"""


@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_without_files_takes_part_before_and_after_a_restart(tmp_path, victim):
    """Three workers, two files; who dies once after its second pass is one with data, or the one without."""
    text = f"{PASSES}\ntrain(QueueDataset, dies={victim})\n{ENDING}"
    ran = launch(tmp_path, script(tmp_path, text, {"a_sync": True}, 1.0), options=["--max-restarts=1"], workers=3)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "counts [-600, -600, -600, -600, -600]" in ran.stdout


def test_globally_shuffled_rows_are_trained_once_when_a_worker_dies(tmp_path):
    text = f"{PASSES}\ntrain(InMemoryDataset, lambda data: data.global_shuffle(fleet), dies=1)\n{ENDING}"
    ran = launch(tmp_path, script(tmp_path, text, {"a_sync": True}, 1.0), options=["--max-restarts=1"])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "counts [-600, -600, -600, -600, -600]" in ran.stdout


def test_a_push_in_flight_when_all_workers_restart_belongs_to_its_step(tmp_path):
    """The survivor has pushed a step that the victim has not; all start again, because rows were dealt to all."""
    text = f"""
{PASSES}
class Dying(static.FetchHandler):
    def handler(self, values):
        if number == 1 and os.path.exists("deadly"):
            die_once(1)

data = InMemoryDataset()
data.init(batch_size=4, thread_num=1, use_var=[ids])
data.set_filelist(files)
data.load_into_memory()
for number in range(3):
    data.global_shuffle(fleet, seed=number)
    exe.train_from_dataset(dataset=data, print_period=20, fetch_handler=Dying({{"loss": loss}}, 0))
{ENDING}"""
    path, counted = script(tmp_path, text), []
    for _ in range(2):
        ran = launch(tmp_path, path, options=["--max-restarts=2"])
        assert ran.returncode == 0, ran.stdout + ran.stderr
        (tmp_path / "deadly").touch()
        counted += [line for line in ran.stdout.splitlines() if "counts" in line]
    assert "was killed by signal 9" in ran.stderr
    assert len(counted) == 2 and counted[0] == counted[1], counted


def test_two_programs_of_a_worker_that_dies_are_trained_once(tmp_path):
    """Two programs train one table in turns; a restarted worker recognises the steps of both."""
    text = """
other = static.Program()
with static.program_guard(other):
    words = static.data("words", [None, 1], "int64", lod_level=1)
    vectors = static.nn.sparse_embedding(words, [1 << 20, 1], param_attr=table, pooling="sum")
    other_loss = static.nn.scale(static.nn.sum(vectors), scale=SCALE)
    static.optimizer.SGD(1.0).minimize(other_loss)
for step in range(60):
    if step == 30 and fleet.worker_index() == 1 and not os.path.exists("died.once"):
        open("died.once", "w").close()
        os.kill(os.getpid(), 9)
    exe.run(feed={"ids": [[step % 5, 4]]}, fetch_list=[loss])
    if step % 2:
        exe.run(other, feed={"words": [[0, 0, step % 5]]}, fetch_list=[other_loss])
fleet.barrier_worker()
if fleet.is_first_worker():
    print(f"counts {counts()}", flush=True)
"""
    ran = launch(tmp_path, script(tmp_path, text, {"a_sync": True}, 1.0), options=["--max-restarts=1"])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # Besides, 30 steps of the other program: id 0 twice in each, and every id six times.
    assert "counts [-156, -36, -36, -36, -156]" in ran.stdout


def test_a_worker_killed_while_it_saves_blocks_no_later_save(tmp_path):
    text = """
import threading
keys = list(range(300_000))
exe.run(feed={"ids": [keys]}, fetch_list=[loss])
fleet.barrier_worker()

def die_between_cut_and_commit():
    while not (os.path.isdir("first") and os.listdir("first")):
        pass
    saved = os.path.exists("first/manifest.json")
    if not os.path.exists("died.once"):
        open("died.once", "w").write(str(saved))
        os.kill(os.getpid(), 9)

if fleet.is_first_worker():
    threading.Thread(target=die_between_cut_and_commit, daemon=True).start()
    fleet.save_persistables(exe, "first")
    fleet.save_persistables(exe, "second")
    exe.run(feed={"ids": [keys]}, fetch_list=[loss])
    fleet.save_persistables(exe, "third")
fleet.barrier_worker()
if fleet.is_first_worker():
    print(f"counts {counts()}", flush=True)
"""
    ran = launch(tmp_path, script(tmp_path, text, {"a_sync": True}, 1.0), options=["--max-restarts=1"])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "counts [-3, -3, -3, -3, -3]" in ran.stdout
    assert (tmp_path / "died.once").read_text() == "False", "the worker died after its save"
    assert all((tmp_path / name / "manifest.json").exists() for name in ("first", "second", "third"))


class Pods:
    """Processes that are started one by one by name, as a scheduler starts pods, without a launcher."""

    def __init__(self, directory, path):
        self.directory, self.path = directory, path
        self.ports = free_ports(2)
        self.running = {}
        self.attempts = 0

    def start(self, role, rank):
        servers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.attempts += 1
        variables = {
            "OPENFLEET_ROLE": role,
            "OPENFLEET_RANK": str(rank),
            "OPENFLEET_SERVERS": servers,
            "OPENFLEET_WORKER_NUM": "2",
            "OPENFLEET_RUN": "0123456789abcdef",
            "OPENFLEET_JOB_FILE": os.devnull,
            "OPENFLEET_INCARNATION": str(self.attempts),
        }
        log = self.directory / f"{role}.{rank}.{self.attempts}.log"
        command, env = [sys.executable, "-u", self.path], environment(**variables)
        with log.open("w") as out:
            process = subprocess.Popen(command, cwd=self.directory, env=env, stdout=out, stderr=subprocess.STDOUT)
        self.running[role, rank] = process, log

    def text(self, role, rank):
        return self.running[role, rank][1].read_text()

    def restart_until_done(self):
        """What a Job with `restartPolicy: Never` does; gives the codes of failures."""
        failures = []
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline:
            codes = {who: process.poll() for who, (process, _) in self.running.items()}
            if all(code == 0 for (role, _), code in codes.items() if role == "worker"):
                return failures
            for (role, rank), code in codes.items():
                if code not in (None, 0):
                    failures.append((role, code))
                    self.start(role, rank)
            time.sleep(0.05)
        raise AssertionError({who: self.text(*who) for who in self.running})

    def end(self):
        for process, _ in self.running.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize("mode, scale", [(SYNC, 2.0), ({"a_sync": True}, 1.0)])
@pytest.mark.parametrize("victim", [("server", 1), ("worker", 1)])
def test_a_replaced_pod_rejoins_and_the_result_is_exact(tmp_path, mode, scale, victim):
    """Follows the printed Kubernetes manifests: a dead process is replaced by one with the same name."""
    pods = Pods(tmp_path, script(tmp_path, STEPS, mode, scale, pause=0.05))
    try:
        for role in ("server", "worker"):
            for rank in (0, 1):
                pods.start(role, rank)
        while "step 20" not in pods.text("worker", 0):
            time.sleep(0.05)
        os.kill(pods.running[victim][0].pid, signal.SIGKILL)
        if victim[0] == "worker":
            # Without a launcher the servers detect it and report who is missing and how long they wait.
            missed = "worker 1 has not been heard from for"
            while missed not in pods.text("worker", 0):
                time.sleep(0.05)
        failures = pods.restart_until_done()
        assert TWO_WORKERS in pods.text("worker", 0)
        if victim[0] == "server":
            # The workers start over together with it, and exit with the code for a restart, which is not a failure.
            assert sorted(failures) == [("server", -9), ("worker", 101), ("worker", 101)], failures
        else:
            assert failures == [("worker", -9)], failures
            assert "worker 1 is back" in pods.text("worker", 0)
    finally:
        pods.end()
