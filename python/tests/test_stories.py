"""Known problems of PaddlePaddle's users that OpenFleet does not have: one test per problem.

Problems between processes are tested with real processes: scripts that `fleetrun` starts, or that the test starts and
stops itself. Problems of a single call are tested in this process.
"""

import importlib.metadata
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from processes import environment, free_ports

import openfleet.fleet as fleet
from openfleet import DataError, RoleError, static
from openfleet.dataset import InMemoryDataset, QueueDataset

# A click model on the files of the fixture `clicks`, from the role to the first step.
BEGIN = """
import sys
import numpy as np
import openfleet.fleet as fleet
from openfleet import static
from openfleet.dataset import InMemoryDataset, QueueDataset

def begin(optimizer, **strategy):
    fleet.init()
    label, dense = static.data("label", [None, 1], "int64"), static.data("dense", [None, 2])
    slots = [static.data(name, [None, 1], "int64", lod_level=1) for name in ("user", "item")]
    parts = [static.nn.embedding(slot, size=[1000, 4], is_sparse=True) for slot in slots]
    x = static.nn.fc(static.nn.concat([*parts, dense], axis=1), size=8, activation="relu", weight_attr="hidden")
    click = static.nn.fc(x, size=1, activation="sigmoid")
    loss = static.nn.mean(static.nn.log_loss(click, static.nn.cast(label, "float32")))
    auc, _, counters = static.nn.auc(click, label)
    test = static.default_main_program().clone(for_test=True)
    choice = fleet.DistributedStrategy()
    for name, value in strategy.items():
        setattr(choice, name, value)
    fleet.distributed_optimizer(optimizer, choice).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        sys.exit()
    exe = static.Executor()
    exe.run(static.default_startup_program())
    fleet.init_worker()
    return exe, [label, dense, *slots], loss, auc, counters, test

def feed(users, items=()):
    n = len(users)
    return {"label": [[user % 2] for user in users], "dense": np.full((n, 2), 0.5), "user": [[user] for user in users],
            "item": [list(items)] * n}
"""


def script(directory, text):
    path = directory / "story.py"
    path.write_text(BEGIN + text)
    return str(path)


def alone(directory, text, *arguments):
    """Runs a script as one process without role variables."""
    command = [sys.executable, script(directory, text), *arguments]
    return subprocess.run(
        command, cwd=directory, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def job(directory, text, *arguments, servers=1, workers=1):
    """Runs a script under `fleetrun`."""
    command = [sys.executable, "-m", "openfleet.launch", f"--server_num={servers}", f"--worker_num={workers}"]
    command += [script(directory, text), *arguments]
    return subprocess.run(
        command, cwd=directory, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def said(run):
    return run.stdout + run.stderr


def numbers(run, word, worker=None):
    """Every number that a process, or one worker, printed after a word, in order."""
    lines = said(run).splitlines()
    if worker is not None:
        lines = [line for line in lines if f"[worker {worker}]" in line]
    found = [re.search(rf"{word} (-?[\d.]+(?:e-?\d+)?)", line) for line in lines]
    return [float(one[1]) for one in found if one]


STEPS = """
exe, _, loss, *_ = begin(static.optimizer.SGD(0.5), a_sync=False)
ranks = range(2) if fleet.worker_num() == 1 else [fleet.worker_index()]
for step in range(20):
    users = [user for rank in ranks for user in (3 * step % 7 + 10 * rank, 5 * step % 11 + 10 * rank)]
    (value,) = exe.run(feed=feed(users, [step % 4]), fetch_list=[loss])
    print(f"loss {value.item():.9f}", flush=True)
fleet.stop_worker()
"""


def test_sync_mode_works_and_two_workers_equal_one_process_on_both_batches(tmp_path):
    """Story 1: sync mode dies at the first step there. Ours works, and equals local."""
    one, two = alone(tmp_path, STEPS), job(tmp_path, STEPS, servers=2, workers=2)
    assert (one.returncode, two.returncode) == (0, 0), said(one) + said(two)
    expected = numbers(one, "loss")
    each = [numbers(two, "loss", worker) for worker in range(2)]
    assert [len(losses) for losses in (expected, *each)] == [20, 20, 20], said(two)
    assert np.mean(each, axis=0) == pytest.approx(expected, rel=1e-4)


FEED_LOOP = """
exe, _, loss, *_ = begin(static.optimizer.SGD(0.5), a_sync=True)
for step in range(120):
    value, weights = exe.run(feed=feed(range(step % 5, 20)), fetch_list=[loss, "hidden"])
    if step == 0:
        first = weights.copy()
    print(f"loss {value.item():.6f}", flush=True)
print(f"moved {np.abs(weights - first).max():.6f}")
fleet.stop_worker()
"""


def test_a_plain_feed_loop_in_async_mode_trains_the_dense_weights(tmp_path):
    """Story 2: the worker's dense weights never change there, without a warning."""
    run = job(tmp_path, FEED_LOOP)
    assert run.returncode == 0, said(run)
    losses = numbers(run, "loss")
    assert losses[-1] < 0.5 * losses[0]
    assert numbers(run, "moved")[0] > 0.01


READ = """
exe, fields, *_ = begin(static.optimizer.SGD(0.1))
dataset = QueueDataset()
dataset.init(batch_size=8, use_var=fields, pipe_command=sys.argv[2] if len(sys.argv) > 2 else None)
dataset.set_filelist([sys.argv[1]] if sys.argv[1:2] != ["none"] else [])
exe.train_from_dataset(fleet.main_program, dataset)
"""


def test_a_missing_file_or_an_empty_list_ends_the_script_with_an_error(tmp_path):
    """Story 6: exit 0 there, and nothing was trained."""
    missing = alone(tmp_path, READ, "nowhere/part-0.txt")
    assert missing.returncode == 1
    assert "FileNotFoundError: data file `nowhere/part-0.txt` does not exist" in missing.stderr
    empty = alone(tmp_path, READ, "none")
    assert empty.returncode == 1
    assert "ValueError: the dataset has no rows: batches of 8 from 0 files of 0 bytes" in empty.stderr


def reader_of(model, path, **options):
    dataset = QueueDataset()
    dataset.init(batch_size=4, use_var=model.fields, **options)
    dataset.set_filelist([path])
    exe = static.Executor()
    exe.run(static.default_startup_program())
    return lambda: exe.train_from_dataset(dataset=dataset, print_period=0)


def test_a_malformed_number_is_named_with_file_line_and_slot(clicks, click_model):
    """Story 7: accepted silently there."""
    (path,) = clicks(files=1, rows=5)
    with open(path, "a") as out:
        out.write("1 1 2 0.5 rubbish 1 3 0\n")
    with pytest.raises(DataError, match=r"part-0.txt` line 6, slot `dense`: expected .*, got `rubbish`"):
        reader_of(click_model(static.optimizer.SGD(0.1)), path)()


def test_a_truncated_line_is_named_and_an_empty_slot_is_valid(clicks, click_model):
    """Story 8: the process aborts there, naming neither file nor line."""
    (path,) = clicks(files=1, rows=5)
    with open(path, "a") as out:
        out.write("1 1 2 0.5 0.5 0 0\n")  # neither user nor item
    read = reader_of(click_model(static.optimizer.SGD(0.1)), path)
    assert read().samples == 6
    with open(path, "a") as out:
        out.write("1 1 2 0.5\n")
    with pytest.raises(DataError, match=r"part-0.txt` line 7, slot `dense`"):
        read()


def auc_of(counters):
    """From the counters of the `auc` layer, the long-term ones."""
    positive, negative = (np.array(static.global_scope().var(c.name).get_tensor(), float) for c in counters[2:])
    positive, negative = positive.ravel(), negative.ravel()
    above = positive[::-1].cumsum()[::-1] - positive
    return float((negative * (above + positive / 2)).sum() / (positive.sum() * negative.sum()))


def test_training_and_evaluating_in_turn_works_any_number_of_times(clicks, click_model):
    """Story 9: a segmentation fault at the second evaluation there."""
    model = click_model()
    test = static.default_main_program().clone(for_test=True)
    static.optimizer.Adam(0.02).minimize(model.loss)
    exe, data = static.Executor(), InMemoryDataset()
    exe.run(static.default_startup_program())
    data.init(batch_size=32, use_var=model.fields)
    data.set_filelist(clicks())
    data.load_into_memory()
    found = []
    for _ in range(4):
        data.local_shuffle()
        exe.train_from_dataset(dataset=data, print_period=0)
        for counter in model.counters:
            tensor = static.global_scope().find_var(counter.name).get_tensor()
            tensor.set(np.zeros(tensor.shape(), "int64"))
        assert exe.infer_from_dataset(test, data, print_period=0).samples == 800
        found.append(auc_of(model.counters))
    assert found[-1] > max(0.8, found[0])


EVALUATE = """
exe, _, loss, auc, counters, test = begin(static.optimizer.Adam(0.05), a_sync=True)
for _ in range(50):
    exe.run(feed=feed(range(10)), fetch_list=[loss])
fleet.barrier_worker()
before = fleet.table_rows()
(value,) = exe.run(test, feed=feed(range(10)), fetch_list=[loss])
print(f"evaluated {value.item():.6f}")
exe.run(test, feed=feed(range(500, 600), [77]), fetch_list=[auc])
after = fleet.table_rows()
print(f"rows {sum(before.values())} made {sum(after.values()) - sum(before.values())}")
fleet.stop_worker()
"""


def test_evaluating_a_clone_on_a_worker_creates_no_rows(tmp_path):
    """Story 10: "Tensor holds no memory" there; ops have to be deleted by hand."""
    run = job(tmp_path, EVALUATE, servers=2)
    assert run.returncode == 0, said(run)
    assert numbers(run, "evaluated")[0] < 0.3
    assert numbers(run, "rows") == [10.0] and numbers(run, "made") == [0.0], said(run)


ALONE = """
exe, _, loss, *_ = begin(static.optimizer.Adam(0.05), a_sync=True)
for step in range(30):
    (value,) = exe.run(feed=feed(range(10)), fetch_list=[loss])
    print(f"loss {value.item():.6f}")
fleet.stop_worker()
"""


def test_without_any_role_variable_it_trains_locally_and_says_so_in_one_line(tmp_path):
    """Story 12: silently trains alone there."""
    run = alone(tmp_path, ALONE)
    assert run.returncode == 0, said(run)
    losses = numbers(run, "loss")
    assert losses[-1] < losses[0]
    lines = [line for line in run.stderr.splitlines() if "one local process" in line]
    assert len(lines) == 1, run.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "5"}, ["`PADDLE_TRAINER_ID`", "5", "0 to 1"]),
        (
            {"TRAINING_ROLE": "PSERVER", "POD_IP": "10.1.2.3", "PADDLE_PORT": "36000"},
            ["10.1.2.3:36000", "PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:36011"],
        ),
        ({"TRAINING_ROLE": "DRIVER"}, ["`TRAINING_ROLE`", "DRIVER"]),
    ],
)
def test_a_wrong_role_names_the_variable_its_value_and_what_was_expected(monkeypatch, variables, words):
    """Story 13: "is not in list" and "list index out of range" there."""
    for name in [name for name in os.environ if name not in environment()]:
        monkeypatch.delenv(name)
    common = {"PADDLE_PSERVERS_IP_PORT_LIST": "127.0.0.1:36011", "PADDLE_TRAINERS_NUM": "2"}
    for name, value in {**common, **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RoleError) as raised:
        fleet.init(fleet.PaddleCloudRoleMaker())
    for word in words:
        assert word in str(raised.value)


RULE = """
fleet.init()
slot = static.data("slot", [None, 1], "int64", lod_level=1)
half = static.ParamAttr(initializer=static.initializer.Constant(0.5))
row = static.nn.embedding(slot, size=[10, 1], is_sparse=True, param_attr=half)
loss = static.nn.mean(row * 3.0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
fleet.distributed_optimizer(getattr(static.optimizer, sys.argv[1])(learning_rate=0.1), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
exe = static.Executor()
exe.run(static.default_startup_program())
fleet.init_worker()
for step in range(3):
    (value,) = exe.run(feed={"slot": [[4]]}, fetch_list=[row])
    print(f"row {value.item():.6f}", flush=True)
fleet.stop_worker()
"""


@pytest.mark.parametrize(("rule", "moves"), [("SGD", 0.3), ("Adam", 0.1)])
def test_sparse_rows_are_updated_by_the_chosen_optimizer(tmp_path, rule, moves):
    """Story 14: sparse tables run Adam there, whatever was chosen.

    The gradient is 3 and the rate 0.1: gradient descent moves by 0.3 a step, Adam (Kingma and Ba 2015) by 0.1.
    """
    run = job(tmp_path, RULE, rule)
    assert run.returncode == 0, said(run)
    assert numbers(run, "row") == pytest.approx([0.5, 0.5 - moves, 0.5 - 2 * moves], abs=1e-4)


PASSES = """
exe, fields, loss, auc, counters, _ = begin(static.optimizer.Adam(0.01), a_sync=True)
dataset = InMemoryDataset()
dataset.init(batch_size=32, use_var=fields)
dataset.set_filelist(sys.argv[1:])
dataset.load_into_memory()
for epoch in range(4):
    dataset.local_shuffle(seed=epoch)
    exe.train_from_dataset(fleet.main_program, dataset, print_period=0)
print(f"auc {fleet.metrics.auc(*counters[2:]):.6f}")
fleet.stop_worker()
"""


def test_async_with_one_worker_reaches_the_auc_of_one_process(tmp_path, clicks):
    """Story 15: 0.56 against 0.84 there, with the same seed and batches."""
    files = clicks(files=2, rows=2000)
    one, served = alone(tmp_path, PASSES, *files), job(tmp_path, PASSES, *files)
    assert (one.returncode, served.returncode) == (0, 0), said(one) + said(served)
    (expected,), (found,) = numbers(one, "auc"), numbers(served, "auc")
    assert expected > 0.8
    assert found == pytest.approx(expected, abs=0.01)


IMPORTS = """
import sys
before = set(sys.modules)
import openfleet, openfleet.fleet, openfleet.static, openfleet.dataset, openfleet.models, openfleet.reader
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(root for root in roots if root not in sys.stdlib_module_names))
"""


def test_the_package_needs_numpy_and_nothing_else():
    """Story 19: a fresh install there pulls a protobuf that breaks setting `a_sync`."""
    requirements = importlib.metadata.requires("openfleet") or []
    needed = [requirement for requirement in requirements if "extra ==" not in requirement]
    assert [re.match(r"[\w-]+", requirement)[0] for requirement in needed] == ["numpy"]
    run = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['numpy', 'openfleet']"


def test_a_pipe_command_that_crashes_ends_the_script_with_its_stderr(tmp_path, clicks):
    """Story 21: 0 rows, "Run Success" and exit 0 there."""
    (path,) = clicks(files=1)
    command = f"{sys.executable} -c 'import sys; sys.exit(\"no such column: age\")'"
    run = alone(tmp_path, READ, path, command)
    assert run.returncode == 1
    assert "DataError" in run.stderr and command in run.stderr
    assert "exit code 1" in run.stderr and "no such column: age" in run.stderr


SHUFFLE = """
exe, fields, loss, auc, counters, _ = begin(static.optimizer.SGD(0.1))
dataset = InMemoryDataset()
dataset.init(batch_size=50, use_var=fields)
dataset.set_filelist(sys.argv[1:] if fleet.is_first_worker() else [])
if fleet.is_first_worker():
    dataset.load_into_memory()
for _ in range(2):
    dataset.global_shuffle(fleet)
    print(f"rows {dataset.get_memory_data_size()} together {dataset.get_shuffle_data_size(fleet)}", flush=True)
report = exe.train_from_dataset(fleet.main_program, dataset, print_period=0)
print(f"trained {int(fleet.all_reduce(report.samples))}")
fleet.stop_worker()
"""


def test_a_global_shuffle_spreads_the_rows_of_one_worker_over_all(tmp_path, clicks):
    """Not of the list: rows move between the workers of a job, each to exactly one."""
    files = clicks(files=2, rows=3000)
    run = job(tmp_path, SHUFFLE, *files, servers=2, workers=3)
    assert run.returncode == 0, said(run)
    counts = [numbers(run, "rows", worker) for worker in range(3)]
    assert [sum(each) for each in zip(*counts)] == [6000.0, 6000.0], said(run)
    # A third of 6000 is 2000, with a standard deviation of 37.
    assert all(1750 < count < 2250 for each in counts for count in each)
    assert numbers(run, "together") == [6000.0] * 6
    assert numbers(run, "trained") == [6000.0] * 3


def test_processes_started_by_hand_in_any_order_connect(tmp_path):
    """Stories 2 and 11 without a launcher: the worker first, the server when it waits already."""
    path = script(tmp_path, FEED_LOOP)
    (port,) = free_ports(1)
    common = {"PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{port}", "PADDLE_TRAINERS_NUM": "1", "PADDLE_TRAINER_ID": "0"}
    server = {"TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1", "PADDLE_PORT": str(port)}
    processes = []
    try:
        for role in ({"TRAINING_ROLE": "TRAINER"}, server):
            processes.append(
                subprocess.Popen(
                    [sys.executable, path],
                    cwd=tmp_path,
                    env=environment(**common, **role),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        outputs = [process.communicate(timeout=90)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "moved 0.000000" not in outputs[0] and "moved" in outputs[0]


SAVE = """
exe, _, loss, *_ = begin(static.optimizer.Adam(0.05), a_sync=True)
for step in range(20):
    exe.run(feed=feed(range(10)), fetch_list=[loss])
fleet.barrier_worker()
if fleet.is_first_worker():
    import time
    while fleet.all_reduce(1) > 1:  # until the other worker has left
        time.sleep(0.05)
    fleet.save_persistables(exe, sys.argv[1])
    print("saved")
else:
    fleet.all_reduce(1)
fleet.stop_worker()
"""


def test_the_first_worker_saves_after_the_other_has_left(tmp_path):
    """Story 22: fails in a barrier there once the other worker has left, then a segmentation fault."""
    run = job(tmp_path, SAVE, str(tmp_path / "model"), servers=2, workers=2)
    assert run.returncode == 0, said(run)
    assert "saved" in run.stdout + run.stderr
    state = static.load_program_state(tmp_path / "model")
    assert state["hidden"].shape == (10, 8)
