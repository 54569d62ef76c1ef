"""The scope of a job: whatever a worker reads, loads or trains in another scope is local to it."""

import json
import subprocess
import sys

import pytest
from processes import environment

HEAD = """
import sys
import numpy as np
import openfleet.fleet as fleet
from openfleet import static

fleet.init()
x = static.data("x", [None, 1], "float32")
weight = static.ParamAttr(name="w", initializer=static.initializer.Constant(0.0))
y = static.nn.fc(x, 1, weight_attr=weight, bias_attr=False)
loss = static.nn.mean(y)
test = static.default_main_program().clone(for_test=True)
strategy = fleet.DistributedStrategy()
strategy.a_sync = A_SYNC
fleet.distributed_optimizer(static.optimizer.SGD(1.0), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
exe = static.Executor()
exe.run(static.default_startup_program())

def show(when, program=test, fetch=y):
    (value,) = exe.run(program, feed={"x": [[1.0]]}, fetch_list=[fetch])
    print(when, round(float(value[0, 0]), 3), flush=True)

def step():
    exe.run(feed={"x": [[1.0]]})
"""


def launch(directory, text, a_sync=True, workers=1, servers=1):
    path = directory / "job.py"
    path.write_text(f"A_SYNC = {a_sync}\n{HEAD}{text}")
    counts = [f"--server_num={servers}", f"--worker_num={workers}"]
    return subprocess.run(
        [sys.executable, "-m", "openfleet.launch", *counts, str(path)],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def told(ran):
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [line.removeprefix("[worker 0] ") for line in ran.stdout.splitlines()]
    return [line for line in lines if line.startswith("now ")]


@pytest.mark.parametrize("a_sync", [True, False])
def test_a_model_loaded_into_another_scope_does_not_change_the_job(tmp_path, a_sync):
    text = """
fleet.init_worker()
step()
static.save(static.default_main_program(), "old")
static.save_inference_model("model", [x], [y], exe, program=test)
step()
step()
with static.scope_guard(static.Scope()):
    static.load(test, "old")
    show("now old")
    program, _, targets = static.load_inference_model("model", exe)
    show("now model", program, targets[0])
    static.save(test, "copy")
show("now job")
step()
show("now job")
with static.scope_guard(static.Scope()):
    fleet.save_persistables(exe, "new")
static.load(static.default_main_program(), "old")
show("now loaded")
step()
show("now loaded")
fleet.stop_worker()
static.load_persistables(exe, "new")
show("now new")
"""
    assert told(launch(tmp_path, text, a_sync)) == [
        "now old -1.0",
        "now model -1.0",
        "now job -3.0",
        "now job -4.0",
        "now loaded -1.0",
        "now loaded -2.0",
        "now new -4.0",
    ]


def test_a_saved_model_is_not_loaded_over_what_the_job_trains(tmp_path):
    text = """
fleet.init_worker()
step()
static.save_inference_model("model", [x], [y], exe, program=test)
step()
try:
    static.load_inference_model("model", exe)
except openfleet.OrderError as error:
    print("now", str(error).splitlines()[0], flush=True)
show("now job")
"""
    assert told(launch(tmp_path, "import openfleet\n" + text)) == [
        "now a saved model would be loaded over the parameters that the job is training",
        "now job -2.0",
    ]


def test_evaluating_before_training_leaves_the_optimizer_as_it_was_chosen(tmp_path):
    text = """
fleet.init_worker()
show("now first")
step()
show("now trained")
"""
    assert told(launch(tmp_path, text)) == ["now first 0.0", "now trained -1.0"]


def test_another_rule_for_a_trained_parameter_is_refused(tmp_path):
    text = """
import openfleet
fleet.init_worker()
step()
other = static.Program()
with static.program_guard(other):
    field = static.data("x", [None, 1], "float32")
    mean = static.nn.mean(static.nn.fc(field, 1, weight_attr=weight, bias_attr=False))
    static.optimizer.SGD(0.5).minimize(mean)
try:
    exe.run(other, feed={"x": [[1.0]]})
except openfleet.ProgramError as error:
    print("now", error, flush=True)
show("now job")
"""
    first, *_, last = told(launch(tmp_path, text))
    assert first.startswith("now `w` is trained by") and "expected trained by" in first, first
    assert last == "now job -1.0"


def test_a_worker_that_forgets_init_worker_does_not_train_alone(tmp_path):
    ran = launch(tmp_path, "step()\n", workers=2)
    assert ran.returncode == 1
    assert "trains before `fleet.init_worker`: every worker would train a model of its own" in ran.stderr


def test_the_jobs_program_is_not_trained_in_another_scope(tmp_path):
    text = """
fleet.init_worker()
with static.scope_guard(static.Scope()):
    exe.run(static.default_startup_program())
    step()
"""
    ran = launch(tmp_path, text)
    assert ran.returncode == 1
    assert "trained in a scope other than the one that was current at `fleet.init_worker`" in ran.stderr


COLLECTIVE = """
import openfleet.fleet as fleet
from openfleet import static

INIT
x = static.data("x", [None, 1], "float32")
y = static.nn.fc(x, 1, weight_attr=static.initializer.Constant(0.0), bias_attr=False)
loss = static.nn.mean(y)
fleet.distributed_optimizer(static.optimizer.SGD(1.0)).minimize(loss)
exe = static.Executor()
exe.run(static.default_startup_program())
exe.run(feed={"x": [[1.0 + 2.0 * fleet.worker_index()]]})
print("trained to", exe.run(feed={"x": [[1.0]]}, fetch_list=[y])[0].item(), flush=True)
"""


@pytest.mark.parametrize(
    "init",
    [
        "fleet.init(is_collective=True)",
        "fleet.init(fleet.PaddleCloudRoleMaker(is_collective=True))",
        "fleet.init()",
    ],
)
def test_workers_without_servers_train_one_model_however_they_are_initialised(tmp_path, init):
    path = tmp_path / "job.py"
    path.write_text(COLLECTIVE.replace("INIT", init))
    command = [sys.executable, "-m", "openfleet.launch", "--nproc_per_node=2", str(path)]
    for words, count, value in [(command, 2, -2.0), ([sys.executable, str(path)], 1, -1.0)]:
        ran = subprocess.run(
            words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert ran.stdout.count(f"trained to {value}") == count, ran.stdout


SPARSE = """
import sys
import openfleet
import openfleet.fleet as fleet
from openfleet import static

fleet.init()
ids = static.data("ids", [None, 1], "int64", lod_level=1)
zero = static.ParamAttr(name="table", initializer=static.initializer.Constant(0.0))
rows = static.nn.sparse_embedding(ids, [0, 1], param_attr=zero, pooling="sum", entry=ENTRY)
loss = static.nn.mean(rows)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
strategy.a_sync_configs = {"k_steps": K_STEPS}
fleet.distributed_optimizer(static.optimizer.SGD(1.0), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
exe = static.Executor()
exe.run(static.default_startup_program())
fleet.init_worker()
"""


def launch_sparse(directory, text, entry="None", k_steps=0, options=("--server_num=2", "--worker_num=1")):
    path = directory / "job.py"
    path.write_text(f"from openfleet import static\nENTRY, K_STEPS = {entry}, {k_steps}\n{SPARSE}{text}")
    command = [sys.executable, "-m", "openfleet.launch", *options] if options else [sys.executable]
    return subprocess.run(
        [*command, str(path)],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("options", [("--server_num=2", "--worker_num=1"), ()])
def test_shrink_removes_rows_not_seen_for_threshold_passes(tmp_path, options):
    text = """
for number in range(5):
    exe.run(feed={"ids": [[1, 2] if number == 0 else [1]]})
    gone = fleet.shrink(3)
    print("now", gone, fleet.table_rows()["table"], flush=True)
"""
    # Row 2 is never seen after the first pass, so after the fourth pass it is three passes old.
    ran = launch_sparse(tmp_path, text, options=options)
    assert told(ran) == ["now 0 2", "now 0 2", "now 0 2", "now 1 1", "now 0 1"]


@pytest.mark.parametrize(
    "entry, call, what",
    [
        ("static.CountFilterEntry(5)", "", "table `table`: admission by occurrence count"),
        ("None", "fleet.shrink(3)", "removing rows"),
    ],
)
def test_what_geo_cannot_do_is_refused(tmp_path, entry, call, what):
    text = f"""
exe.run(feed={{"ids": [[1, 2]]}})
{call}
"""
    ran = launch_sparse(tmp_path, text, entry, k_steps=2)
    assert ran.returncode == 1
    assert f"{what} is not supported in geo mode" in ran.stderr, ran.stderr


def test_a_geo_save_contains_the_updates_of_every_worker(tmp_path):
    """One worker saves in the middle of its script; the other has sent 10 of 14 steps, and is asked for the rest."""
    text = """
import os, time
step = lambda key: exe.run(feed={"ids": [[key]]})
if fleet.is_first_worker():
    while not os.path.exists("ready"):
        time.sleep(0.01)
    for _ in range(16):
        step(1)
    fleet.save_persistables(exe, "saved")
    open("done", "w").close()
else:
    for _ in range(14):
        step(1)
    open("ready", "w").close()
    while not os.path.exists("done"):
        step(2)
        time.sleep(0.005)
"""
    ran = launch_sparse(tmp_path, text, k_steps=10, options=("--server_num=2", "--worker_num=2"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    export = [sys.executable, "-m", "openfleet", "export", "saved", "--out", "rows.txt"]
    subprocess.run(export, cwd=tmp_path, env=environment(), capture_output=True, check=True)
    rows = dict(line.split("\t") for line in (tmp_path / "rows.txt").read_text().splitlines())
    assert abs(float(rows["1"]) + 30) < 0.01, rows
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())
    assert f"job {manifest['job']}: 2 servers" in ran.stderr, "a checkpoint says whose it is"


def job_of(checkpoint):
    return json.loads((checkpoint / "manifest.json").read_text())["job"]


def test_every_way_to_save_writes_the_name_of_the_job(tmp_path):
    text = """
fleet.init_worker()
step()
static.save(static.default_main_program(), "static")
static.save_inference_model("model", [x], [y], exe, program=test)
fleet.save_persistables(exe, "fleet")
"""
    ran = launch(tmp_path, text)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for checkpoint in ("static", "model", "fleet"):
        assert f"job {job_of(tmp_path / checkpoint)}: 1 server" in ran.stderr, checkpoint

    def run(*command):
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)

    openfleet = (sys.executable, "-m", "openfleet")
    assert run(*openfleet, "gen", "criteo", "--rows", "200", "--out", "clicks").returncode == 0
    train = ("--model", "ctr_dnn", "--train", "clicks/train/*.txt", "--save", "cli")
    counts = ("--server_num=1", "--worker_num=1")
    ran = run(sys.executable, "-m", "openfleet.launch", *counts, "openfleet", "train", *train)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"job {job_of(tmp_path / 'cli')}: 1 server" in ran.stderr


def test_every_worker_loads_the_running_statistics_of_a_checkpoint(tmp_path):
    normal = "normal = static.nn.batch_norm(x, moving_mean_name='mean')\n"
    head = HEAD.replace("y = static.nn.fc(x,", f"{normal}y = static.nn.fc(normal,")
    path = tmp_path / "job.py"
    text = """
fleet.init_worker()
def show_mean():
    print("now", np.array(static.global_scope().find_var("mean").get_tensor()).tolist(), flush=True)

step()
step()
if fleet.is_first_worker():
    static.save(static.default_main_program(), "old")
    show_mean()
fleet.barrier_worker()
for _ in range(3 + 2 * fleet.worker_index()):
    step()
fleet.barrier_worker()
static.load(static.default_main_program(), "old")
show_mean()
"""
    path.write_text(f"A_SYNC = True\n{head}{text}")
    command = [sys.executable, "-m", "openfleet.launch", "--server_num=1", "--worker_num=2", str(path)]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    means = [line.split("now ")[1] for line in ran.stdout.splitlines() if "now " in line]
    assert len(means) == 3 and set(means) == {means[0]}, ran.stdout


def test_dropout_differs_between_workers(tmp_path):
    head = HEAD.replace("loss = static.nn.mean(y)", "mask = static.nn.dropout(x, 0.5)\nloss = static.nn.mean(y)")
    head = head.replace('"x", [None, 1]', '"x", [None, 64]')
    path = tmp_path / "job.py"
    path.write_text(
        f"A_SYNC = False\n{head}\nfleet.init_worker()\n"
        "for _ in range(2):\n"
        "    (kept,) = exe.run(feed={'x': np.ones((1, 64), 'float32')}, fetch_list=[mask])\n"
        "    print('now', ''.join('1' if value else '0' for value in kept[0]), flush=True)\n"
    )
    command = [sys.executable, "-m", "openfleet.launch", "--server_num=1", "--worker_num=2", str(path)]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    masks = [line.split("now ")[1] for line in ran.stdout.splitlines() if "now " in line]
    assert len(masks) == 4 and len(set(masks)) == 4, masks


# A linear problem has an exact answer; the distance to it shows the precision of the values on the wire.
LINEAR = """
import sys
import numpy as np
import openfleet.fleet as fleet
from openfleet import static

fleet.init()
x = static.data("x", [None, 4], "float32")
label = static.data("label", [None, 1], "float32")
y = static.nn.fc(x, 1, weight_attr=static.ParamAttr(name="w"), bias_attr=False)
loss = static.nn.mean(static.nn.square_error_cost(y, label))
strategy = fleet.DistributedStrategy()
strategy.a_sync = IS_ASYNC
if WIRE_BITS:
    strategy.a_sync_configs = {"wire_bits": WIRE_BITS}
fleet.distributed_optimizer(static.optimizer.SGD(0.05), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
exe = static.Executor()
exe.run(static.default_startup_program())
fleet.init_worker()
chance = np.random.default_rng(1)
right = np.array([[0.731], [-1.377], [0.0519], [2.113]], "float32")
test = static.default_main_program().clone(for_test=True)
difference = 0.0
for steps in (20, 1480):
    for _ in range(steps):
        batch = chance.standard_normal((16, 4)).astype("float32")
        exe.run(feed={"x": batch, "label": batch @ right})
    static.save(static.default_main_program(), f"linear-{IS_ASYNC}-{WIRE_BITS}-{steps}")
    weights = static.load_program_state(f"linear-{IS_ASYNC}-{WIRE_BITS}-{steps}")["w"]
    feed = {"x": np.eye(4, dtype="float32"), "label": np.zeros((4, 1), "float32")}
    (evaluated,) = exe.run(test, feed=feed, fetch_list=[y])
    difference = max(difference, float(np.abs(evaluated - weights).max()))
print("now", float(np.abs(weights - right).max()), difference, flush=True)
"""


@pytest.mark.parametrize("is_async", [True, False])
def test_sixteen_bits_on_the_wire_cost_no_accuracy(tmp_path, is_async):
    errors = {}
    # 16 is the default of async mode, and 32 that of sync mode.
    narrow = 0 if is_async else 16
    for bits in (narrow, 32):
        path = tmp_path / f"linear-{bits}.py"
        path.write_text(f"IS_ASYNC, WIRE_BITS = {is_async}, {bits}\n{LINEAR}")
        command = [sys.executable, "-m", "openfleet.launch", "--server_num=2", "--worker_num=1", str(path)]
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert ("gradients travel as 16 bits" in ran.stdout) == (bits == narrow), ran.stdout
        (line,) = told(ran)
        errors[bits], difference = map(float, line.split()[1:])
        assert difference < 1e-6, "what is evaluated is what is saved"
    assert errors[narrow] <= 2 * errors[32] + 1e-7, errors
