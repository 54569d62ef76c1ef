"""Jobs on a real Ray cluster of this machine: they train, fail, restart and end as under `fleetrun`.

Everything listens on loopback. Run by `make test-frameworks`; skipped where Ray is not installed.
"""

import concurrent.futures
import contextlib
import importlib.util
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import sysconfig
import time

import pytest
from processes import environment

import openfleet

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: `make test-frameworks` installs it", allow_module_level=True)

# Read when Ray is imported: addresses of loopback, a token that is not written to the home directory, no statistics.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray  # noqa: E402
from ray.util import list_named_actors, placement_group_table  # noqa: E402

from openfleet.ray import JobError, PlacementError, launch  # noqa: E402

# No test waits longer than this for something that should happen.
SECONDS = 120
SCRIPTS = sysconfig.get_path("scripts")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    # A process that started these tests may have given them a role.
    for name in set(os.environ) - set(environment()):
        os.environ.pop(name)
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def wait_until(condition, what):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {SECONDS} s: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def meanwhile(function):
    """Calls a function in a thread while the block runs; its error is raised at the end."""
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        called = threads.submit(function)
        yield
        called.result(SECONDS)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_ended(pids):
    """The processes have ended, and Ray has nothing left of any job."""
    wait_until(lambda: not any(map(is_alive, pids)), f"some of the processes {pids} are alive")
    wait_until(lambda: not list_named_actors(all_namespaces=True), "an actor is alive")
    states = {group["state"] for group in placement_group_table().values()}
    assert states <= {"REMOVED"}
    wait_until(lambda: ray.available_resources().get("CPU") == 8, "CPUs are reserved")


def script(tmp_path, text):
    path = tmp_path / "job.py"
    path.write_text(text)
    return str(path)


def fleetrun(*arguments):
    command = [sys.executable, "-m", "openfleet.launch", *arguments]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def openfleet_command(*arguments):
    command = [os.path.join(SCRIPTS, "openfleet"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def difference(one, other):
    """The tables and parameters of two checkpoints: how many there are, and how many values differ."""
    found = json.loads(openfleet_command("diff", one, other, "--json"))
    assert not found["only_before"] + found["only_after"] + found["other_shape"]
    parts = found["tables"] + found["parameters"]
    rows = sum(table["same"] + table["changed"] for table in found["tables"])
    changed = sum(part["changed"] + part.get("added", 0) + part.get("removed", 0) for part in parts)
    return len(parts), rows, changed


TRAIN = """
import sys
import openfleet.fleet as fleet
from openfleet import static

fleet.init()
x = static.data("x", [None, 2])
ids = static.data("ids", [None, 1], "int64", lod_level=1)
rows = static.nn.sparse_embedding(ids, [1 << 20, 4], param_attr=static.ParamAttr(name="table"), pooling="sum")
y = static.nn.fc(static.nn.concat([rows, x], axis=1), size=1, weight_attr="weights")
loss = static.nn.mean(static.nn.square(y))
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
fleet.distributed_optimizer(static.optimizer.Adam(0.01), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
exe = static.Executor()
exe.run(static.default_startup_program())
fleet.init_worker()
for step in range(20):
    rank = fleet.worker_index()
    exe.run(feed={"x": [[step / 20, 1.0 - rank]], "ids": [[step, 7 * rank]]}, fetch_list=[loss])
fleet.barrier_worker()
if fleet.is_first_worker():
    fleet.save_persistables(exe, sys.argv[1])
fleet.stop_worker()
"""


def test_smoke_a_job_with_servers_trains_what_it_trains_under_fleetrun(tmp_path, capsys):
    path = script(tmp_path, TRAIN)
    result = launch(path, ["on-ray"], servers=2, workers=2, strategy="SPREAD", keep_output=True)
    assert result.exit_codes == {"server 0": 0, "server 1": 0, "worker 0": 0, "worker 1": 0}
    assert result.restarts == 0
    # The lines are printed with prefixes, and kept without.
    printed = capsys.readouterr().out.splitlines()
    for name, lines in result.output.items():
        assert lines and [line for line in printed if line.startswith(f"[{name}]")] == [f"[{name}] {x}" for x in lines]
    fleetrun("--server_num=2", "--worker_num=2", path, "under-fleetrun")
    # The table has a row per id, 20 of the steps and those of rank 1; the other parameters are weights and bias.
    assert difference("on-ray", "under-fleetrun") == (3, 20, 0)
    all_ended([])


def test_ranks_of_a_collective_job_train_what_they_train_under_fleetrun():
    openfleet_command("gen", "criteo", "--rows", "800", "--test-rows", "100", "--ids", "200", "--out", "clicks")
    train = ["train", "--model", "ctr_dnn", "--hidden", "8", "--mode", "collective", "--train", "clicks/train/*.txt"]
    # `openfleet` is found beside the interpreter of the actor.
    result = launch("openfleet", [*train, "--save", "on-ray"], servers=0, workers=2)
    assert result.exit_codes == {"worker 0": 0, "worker 1": 0} and result.output is None
    fleetrun("--nproc_per_node=2", "openfleet", *train, "--save", "under-fleetrun")
    parts, rows, changed = difference("on-ray", "under-fleetrun")
    assert (parts, changed) == (5, 0) and rows > 100


VARIABLES = """
import json, os, sys
also = sys.argv[1].split(",")
names = sorted(name for name in os.environ if name.startswith(("OPENFLEET_", "PADDLE_")) or name in also)
name = f"{os.environ['OPENFLEET_ROLE']}.{os.environ['OPENFLEET_RANK']}.{sys.argv[2]}"
with open(name, "w") as out:
    json.dump({name: os.environ[name] for name in names}, out)
"""
TORCH = "RANK,WORLD_SIZE,LOCAL_RANK,LOCAL_WORLD_SIZE,GROUP_RANK,GROUP_WORLD_SIZE,MASTER_ADDR,MASTER_PORT"
# What differs between two runs: ports, random digits and paths.
OWN = re.compile(r".*(SECRET|RUN|JOB|FILE|PORT|SERVERS|WORKERS|ENDPOINTS?|LIST|PADDLE_CURRENT_ENDPOINT)$")


@pytest.mark.parametrize("servers", [0, 1])
def test_a_process_gets_the_variables_that_fleetrun_writes(tmp_path, monkeypatch, servers):
    monkeypatch.setenv("OPENFLEET_SECRET", "swordfish")
    path = script(tmp_path, VARIABLES)
    more = {"TRAINING_ROLE": "left over", "OWN": "value"}
    launch(path, [f"{TORCH},OWN", "ray"], servers=servers, workers=2, env=more)
    counts = [f"--server_num={servers}", "--worker_num=2"] if servers else ["--nproc_per_node=2"]
    fleetrun(*counts, path, TORCH, "fleetrun")
    names = [f"server.{rank}" for rank in range(servers)] + ["worker.0", "worker.1"]
    for name in names:
        ours, theirs = (json.loads((tmp_path / f"{name}.{kind}").read_text()) for kind in ("ray", "fleetrun"))
        assert ours.pop("OWN") == "value"
        assert ours["OPENFLEET_SECRET"] == "swordfish"
        assert ours.keys() == theirs.keys()
        same = [variable for variable in ours if not OWN.match(variable)]
        assert len(same) >= 5 and {each: ours[each] for each in same} == {each: theirs[each] for each in same}


def test_a_module_runs_with_its_arguments(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys; print(__package__, sys.argv[1:])")
    result = launch("package.train", ["--epochs", "3 4"], module=True, servers=0, workers=1, keep_output=True)
    assert result.output == {"worker 0": ["package ['--epochs', '3 4']"]}


def test_compat_lets_a_script_import_paddle(tmp_path):
    path = script(tmp_path, "import paddle; print(paddle.static.__name__)")
    result = launch(path, servers=0, workers=1, compat=True, keep_output=True)
    assert "paddle" in result.output["worker 0"][-1]


# Writes the ids of this process, of a process that it starts, and of its actor to a file.
PIDS = """
import os, subprocess, sys, time
role, rank = os.environ["OPENFLEET_ROLE"], os.environ["OPENFLEET_RANK"]
helper = subprocess.Popen(["sleep", "1000"])
with open(f"writing.{role}.{rank}", "w") as out:
    out.write(f"{os.getpid()} {helper.pid} {os.getppid()}")
os.replace(f"writing.{role}.{rank}", f"pids.{role}.{rank}")
"""
ALL = ["server.0", "server.1", "worker.0", "worker.1"]


def pids_of(*names):
    """The ids of process, helper and actor, one name after the other."""
    wait_until(lambda: all(os.path.exists(f"pids.{name}") for name in names), f"not all of {names} have started")
    found = []
    for name in names:
        with open(f"pids.{name}") as file:
            found += map(int, file.read().split())
    return found


def test_a_failing_script_raises_with_its_last_lines_and_everything_ends(tmp_path):
    text = """
while not all(os.path.exists(f"pids.{name}") for name in ("server.0", "server.1", "worker.0", "worker.1")):
    time.sleep(0.02)
if (role, rank) == ("worker", "1"):
    for number in range(100):
        print("line", number)
    raise ValueError("no such feature")
time.sleep(1000)
"""
    with pytest.raises(JobError) as raised:
        launch(script(tmp_path, PIDS + text), servers=2, workers=2, timeout=SECONDS)
    error = raised.value
    assert (error.process, error.exit_code, len(error.last_lines)) == ("worker 1", 1, 30)
    assert re.match(r"worker 1 \(pid \d+\) exited with code 1\n", str(error))
    assert str(error).endswith("\n\nthe last lines of worker 1 on 127.0.0.1:\n" + "\n".join(error.last_lines))
    assert "line 99" in error.last_lines and error.last_lines[-1] == "ValueError: no such feature"
    assert isinstance(error, openfleet.Error)
    all_ended(pids_of(*ALL))


def test_a_script_that_is_not_on_the_node_is_named():
    with pytest.raises(JobError, match=r"could not be started: script `none.py` does not exist"):
        launch("none.py", servers=1, workers=1)
    all_ended([])


def test_a_working_directory_that_is_not_on_the_node_is_named(tmp_path):
    with pytest.raises(JobError, match=r"worker 0 cannot be placed: .*no/where(.|\n)*hint: `cwd` must exist"):
        launch(script(tmp_path, ""), servers=0, workers=1, cwd=str(tmp_path / "no/where"))
    all_ended([])


def test_the_timeout_ends_the_job(tmp_path):
    with pytest.raises(JobError, match="did not end within") as raised:
        launch(script(tmp_path, PIDS + "time.sleep(1000)"), servers=0, workers=1, timeout=3)
    assert raised.value.exit_code == 124 and raised.value.process is None
    all_ended(pids_of("worker.0"))


def test_ctrl_c_ends_everything(tmp_path):
    # A worker that is asked to end says so; nobody else ends the processes.
    text = """
try:
    time.sleep(1000)
except KeyboardInterrupt:
    open(f"interrupted.{role}.{rank}", "w").close()
"""

    def interrupt():
        pids_of(*ALL)
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(interrupt), pytest.raises(KeyboardInterrupt):
        launch(script(tmp_path, PIDS + text), servers=2, workers=2, timeout=SECONDS)
    all_ended(pids_of(*ALL))
    assert all(os.path.exists(f"interrupted.{name}") for name in ALL)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_the_driver_ends_everything(tmp_path, monkeypatch):
    from openfleet.ray._driver import Driver

    def fails(self):
        pids_of(*ALL)
        raise RuntimeError("a bug")

    monkeypatch.setattr(Driver, "_give_up", fails)
    with pytest.raises(RuntimeError, match="a bug"):
        launch(script(tmp_path, PIDS + "time.sleep(1000)"), servers=2, workers=2, timeout=SECONDS)
    all_ended(pids_of(*ALL))


@pytest.mark.parametrize("servers, cpus", [(1, 9), (2, 4)])
def test_a_job_that_does_not_fit_says_what_it_asked_for_and_what_there_is(tmp_path, servers, cpus):
    """A process that is larger than a node, and processes that are too many."""
    asked = servers * cpus + 1
    with pytest.raises(PlacementError) as raised:
        launch(script(tmp_path, ""), servers=servers, workers=1, cpus_per_server=cpus, placement_timeout=1)
    text = str(raised.value)
    assert f"it asks for {asked} CPUs" in text and f"with {cpus} each" in text
    assert "the cluster has 8 CPUs, of which 8 are available; its largest node has 8" in text
    assert "hint: ask for fewer CPUs" in text
    all_ended([])


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"workers": 0}, "`workers`: expected a number from 1 to 65536, got `0`"),
        ({"servers": -1}, "`servers`: expected a number from 0 up, got `-1`"),
        ({"strategy": "PAK"}, "`strategy`: expected `PACK` or `SPREAD`, got `PAK`"),
        ({"cpus_per_worker": 0}, "`cpus_per_worker`: expected a number above 0, got `0`"),
        ({"module": True}, "`-m`: expected the name of a module, as in `package.train`, got `job.py`"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_placed(arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        launch("job.py", **{"servers": 1, "workers": 1, **arguments})
    assert not list_named_actors(all_namespaces=True)


# Restarts. Every occurrence of an id adds -1 to its row: after training a row is minus the number of its occurrences,
# or a row was lost or trained twice.

ROWS = 2400
IDS = 40


def counter_job(kill, servers=2, mode="sync"):
    """Trains the counter; `kill` is called in a thread. Returns the result and the counts."""
    os.makedirs("data")
    for part in range(2):
        lines = (f"1 0 1 {row % IDS} 1 {IDS + part}\n" for row in range(ROWS // 2))
        with open(f"data/part-{part}.txt", "w") as out:
            out.writelines(lines)
    train = f"train --model counter --mode {mode} --scale 2 --dense 0 --slots 2 --batch 4 --epochs 6 --save-every 100"
    # Each line of a file passes a reader that is slow enough for the kill to come while the job trains.
    slow = f"{sys.executable} {os.path.abspath('slow.py')}"
    with open("slow.py", "w") as out:
        out.write("import sys, time\nfor line in sys.stdin:\n    time.sleep(0.001)\n    sys.stdout.write(line)\n")
    arguments = [*train.split(), "--train", "data/*.txt", "--save", "counts", "--pipe-command", slow]
    with meanwhile(kill):
        result = launch(
            "openfleet", arguments, servers=servers, workers=2, max_restarts=2, keep_output=True, timeout=SECONDS
        )
    openfleet_command("export", "counts", "--out", "counts.txt")
    with open("counts.txt") as file:
        counts = {int(key): -float(value) for key, value in (line.split("\t") for line in file)}
    return result, counts


EXACT = {**dict.fromkeys(range(IDS), 6 * ROWS / IDS), IDS: 3.0 * ROWS, IDS + 1: 3.0 * ROWS}


def child(role, rank):
    """The environment and the parent, which is the actor, of the process that has this role in this directory."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                lines = file.read().decode(errors="replace").split("\0")
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                is_process = b"--save-every" in file.read()
            with open(f"/proc/{pid}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            is_here = os.readlink(f"/proc/{pid}/cwd") == os.getcwd()
        except OSError:
            continue
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        if is_process and is_here and variables.get("OPENFLEET_ROLE") == role and variables["OPENFLEET_RANK"] == rank:
            return variables, parent
    raise AssertionError(f"{role} {rank} does not run")


def has_reported_a_checkpoint(server):
    try:
        with open(server["OPENFLEET_PROGRESS_FILE"]) as file:
            return "checkpoint" in file.read()
    except FileNotFoundError:
        return False


def test_a_worker_whose_actor_is_killed_resumes_and_every_row_is_trained_once(capsys):
    def kill():
        wait_until(lambda: os.path.exists("counts/manifest.json"), "no checkpoint was saved")
        names = [actor["name"] for actor in list_named_actors(all_namespaces=True)]
        (name,) = [name for name in names if name.split("/")[-2] == "worker 1"]
        ray.kill(ray.get_actor(name))

    result, counts = counter_job(kill)
    assert counts == EXACT
    assert (result.restarts, result.exit_codes["worker 1"]) == (1, 0)
    told = capsys.readouterr().err
    assert re.search(
        r"worker 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\); it is restarted \(restart 1 of 2\)", told
    )
    all_ended([])


def test_a_server_whose_actor_is_killed_returns_the_job_to_its_checkpoint(capsys):
    def kill():
        wait_until(lambda: os.path.exists("counts/manifest.json"), "no checkpoint was saved")
        other, _ = child("server", "1")
        wait_until(lambda: has_reported_a_checkpoint(other), "server 1 has reported no checkpoint")
        _, actor = child("server", "0")
        os.kill(actor, signal.SIGKILL)

    result, counts = counter_job(kill)
    assert counts == EXACT
    assert result.restarts == 1
    told = capsys.readouterr().err
    assert re.search(r"server 0 \(pid \d+\) was killed by .*; all 4 processes restart \(restart 1 of 2\)", told), told
    for name in ("server 0", "server 1"):
        lines = [line for line in result.output[name] if re.search(r"starts from step \d+ of `counts`", line)]
        assert len(lines) == 1, result.output[name]
    all_ended([])


def test_a_rank_whose_actor_is_killed_returns_all_ranks_to_the_checkpoint(capsys):
    def kill():
        wait_until(lambda: os.path.exists("counts/manifest.json"), "no checkpoint was saved")
        first, _ = child("worker", "0")
        wait_until(lambda: has_reported_a_checkpoint(first), "worker 0 has reported no checkpoint")
        _, actor = child("worker", "1")
        os.kill(actor, signal.SIGKILL)

    result, counts = counter_job(kill, servers=0, mode="collective")
    assert counts == EXACT
    assert result.restarts == 1
    told = capsys.readouterr().err
    assert re.search(r"worker 1 \(pid \d+\) was killed by .*; all 2 processes restart \(restart 1 of 2\)", told), told
    assert any("returns to the checkpoint `counts`" in line for line in result.output["worker 0"])
    all_ended([])


def test_a_killed_actor_without_restarts_ends_the_job_and_its_child(tmp_path):
    def kill():
        actor = pids_of("worker.0", "worker.1")[5]
        os.kill(actor, signal.SIGKILL)

    text = PIDS.replace("with open", "print('hello', flush=True)\nwith open") + "time.sleep(1000)"
    was_killed = r"worker 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\)"
    with meanwhile(kill), pytest.raises(JobError, match=was_killed) as raised:
        launch(script(tmp_path, text), servers=0, workers=2, timeout=SECONDS)
    assert (raised.value.process, raised.value.exit_code, raised.value.last_lines) == ("worker 1", 137, ["hello"])
    all_ended(pids_of("worker.0", "worker.1"))


def test_an_actor_that_does_not_answer_counts_as_killed(tmp_path, monkeypatch, capsys):
    """The actor is stopped and its process is not, as if the network to its node were lost."""
    monkeypatch.setattr("openfleet.ray._driver.UNRESPONSIVE", 2.0)

    def stop():
        os.kill(pids_of("worker.0")[2], signal.SIGSTOP)

    text = PIDS + "time.sleep(0 if os.environ['OPENFLEET_INCARNATION'] == '2' else 1000)"
    with meanwhile(stop):
        result = launch(script(tmp_path, text), servers=0, workers=1, max_restarts=1, timeout=SECONDS)
    assert result.restarts == 1
    assert "the actor of worker 0 on 127.0.0.1 does not answer; it is killed" in capsys.readouterr().err
    all_ended(pids_of("worker.0"))


DRIVER = """
import sys
import openfleet.ray, ray
ray.init(address=sys.argv[1])
openfleet.ray.launch("job.py", servers=2, workers=2)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_is_killed_leaves_nothing_behind(tmp_path, number):
    script(tmp_path, PIDS + "time.sleep(1000)")
    address = ray.get_runtime_context().gcs_address
    with subprocess.Popen([sys.executable, "-c", DRIVER, address], env=environment()) as driver:
        pids = pids_of(*ALL)
        driver.send_signal(number)
        assert driver.wait(SECONDS) != 0
    all_ended(pids)


def test_importing_openfleet_does_not_import_ray():
    code = "import sys, openfleet, openfleet.fleet, openfleet.static, openfleet.ray; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=SECONDS)
