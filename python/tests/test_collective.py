"""Collective jobs from Python: real scripts in real processes that train without servers."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from processes import environment, free_ports

MODEL = """
import os, sys, time
import numpy as np
import openfleet.fleet as fleet
from openfleet import static

fleet.init(is_collective=True)
for program in (static.default_main_program(), static.default_startup_program()):
    program.random_seed = 3
x = static.data("x", [None, 4])
ids = static.data("ids", [None, 1], "int64", lod_level=1)
label = static.data("label", [None, 1])
rows = static.nn.sparse_embedding(ids, [100, 3], pooling="sum")
hidden = static.nn.fc(static.nn.concat([rows, x], axis=1), size=6, activation="tanh")
logit = static.nn.fc(hidden, size=1)
loss = static.nn.mean(static.nn.sigmoid_cross_entropy_with_logits(logit, label))
test = static.default_main_program().clone(for_test=True)
strategy = fleet.DistributedStrategy()
for name, value in STRATEGY.items():
    setattr(strategy, name, value)
clip = static.clip.ClipGradByGlobalNorm(0.1) if CLIP else None
optimizer = getattr(static.optimizer, OPTIMIZER)(0.05, grad_clip=clip)
fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
exe = static.Executor()
exe.run(static.default_startup_program())
rank, ranks = fleet.worker_index(), fleet.worker_num()

def batch(step, part):
    chance = np.random.RandomState(1000 * step + part)
    x, ids = chance.rand(8, 4).astype("float32"), chance.randint(0, 100, (8, 2))
    return {"x": x, "ids": ids.tolist(), "label": (ids[:, :1] % 2).astype("float32")}

def joined(step, parts):
    parts = [batch(step, part) for part in parts]
    return {
        "x": np.concatenate([part["x"] for part in parts]),
        "ids": [row for part in parts for row in part["ids"]],
        "label": np.concatenate([part["label"] for part in parts]),
    }

def result():
    everything = {"x": np.zeros((100, 4), "float32"), "ids": [[key] for key in range(100)], "label": np.zeros((100, 1))}
    (logits,) = exe.run(test, feed=everything, fetch_list=[logit])
    scope = static.global_scope()
    names = [parameter.name for parameter in static.default_main_program().all_parameters()]
    dense = [np.array(scope.var(name).get_tensor()) for name in names if scope.var(name).rows() is None]
    return np.concatenate([array.ravel() for array in [logits, *dense]])

def write(name):
    np.save(f"{name}.npy", result())
"""


def script(directory, text, name="job.py", strategy=None, optimizer="SGD", clip=False):
    head = f"STRATEGY, OPTIMIZER, CLIP = {strategy or {}!r}, {optimizer!r}, {clip}\n"
    path = directory / name
    path.write_text(head + MODEL + text)
    return str(path)


def fleetrun(directory, *words, **variables):
    return subprocess.run(
        [sys.executable, "-m", "openfleet.launch", *words],
        cwd=directory,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def succeeds(ran):
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def alone(directory, path):
    return subprocess.run(
        [sys.executable, path],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def values(directory, name):
    return np.load(directory / f"{name}.npy")


STEPS = """
for step in range(100):
    exe.run(feed=batch(step, rank), fetch_list=[loss])
write(f"rank{rank}")
"""


@pytest.mark.parametrize("optimizer, clip", [("SGD", False), ("Momentum", True), ("Adam", False), ("Adam", True)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_as_one_process_does_on_the_joined_batches(tmp_path, optimizer, clip, ranks):
    one = f"for step in range(100):\n    exe.run(feed=joined(step, range({ranks})))\nwrite('alone')\n"
    succeeds(alone(tmp_path, script(tmp_path, one, "one.py", optimizer=optimizer, clip=clip)))
    job = script(tmp_path, STEPS, optimizer=optimizer, clip=clip)
    said = succeeds(fleetrun(tmp_path, f"--nproc_per_node={ranks}", job))
    assert "mode collective: every step applies the mean of all ranks' gradients" in said
    got = [values(tmp_path, f"rank{rank}") for rank in range(ranks)]
    for other in got[1:]:
        assert (other == got[0]).all(), "the ranks differ"
    expected = values(tmp_path, "alone")
    assert np.linalg.norm(got[0] - expected) < 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    "strategy, words",
    [
        (
            {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 4}},
            "gradients are merged over 4 steps (mean)",
        ),
        ({"fp16_allreduce": True}, "gradients travel as 16 bits"),
    ],
)
def test_strategies_train_and_all_ranks_agree(tmp_path, strategy, words):
    said = succeeds(fleetrun(tmp_path, "--nproc_per_node=2", script(tmp_path, STEPS, strategy=strategy)))
    assert words in said
    first, second = (values(tmp_path, f"rank{rank}") for rank in range(2))
    assert (first == second).all() and np.abs(first).max() > 0.1


def test_local_sgd_of_one_step_equals_an_all_reduce_and_refuses_sparse_tables(tmp_path):
    dense = 'rows = static.nn.sparse_embedding(ids, [100, 3], pooling="sum")', "rows = x"
    texts = {"all": {}, "local": {"localsgd": True}, "rare": {"localsgd": True, "localsgd_configs": {"k_steps": 7}}}
    for name, strategy in texts.items():
        path = script(tmp_path, STEPS.replace("rank{rank}", f"{name}{{rank}}"), f"{name}.py", strategy=strategy)
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(text.replace(*dense))
        succeeds(fleetrun(tmp_path, "--nproc_per_node=2", path))
    np.testing.assert_allclose(values(tmp_path, "local0"), values(tmp_path, "all0"), atol=1e-6)
    assert (values(tmp_path, "rare0") != values(tmp_path, "all0")).any()
    ran = fleetrun(tmp_path, "--nproc_per_node=2", script(tmp_path, STEPS, strategy={"localsgd": True}))
    refused = "ValueError: `localsgd` cannot train the sparse table `embedding_0.w_0`"
    assert ran.returncode == 1 and refused in ran.stderr, ran.stderr


@pytest.mark.parametrize(
    "name, hint",
    [
        ("dgc", "`fp16_allreduce` halves what is sent"),
        ("lamb", "use `static.optimizer.Lamb`"),
        ("lars", "use `static.optimizer.Momentum`"),
        ("amp", "`fp16_allreduce`"),
        ("sharding", "servers hold larger tables"),
        ("recompute", "use a smaller batch"),
    ],
)
def test_what_is_not_there_is_refused_by_name(name, hint):
    from openfleet import fleet

    strategy = fleet.DistributedStrategy()
    with pytest.raises(NotImplementedError, match=f"`{name}` of DistributedStrategy") as raised:
        setattr(strategy, name, True)
    assert hint in str(raised.value)


UNEVEN = """
for step in range(20 * rank):
    exe.run(feed=batch(step, rank))
write(f"rank{rank}")
"""


def test_a_rank_without_a_single_batch_takes_part_in_the_steps_of_the_others(tmp_path):
    # Ranks 0, 1 and 2 have 0, 20 and 40 batches: the mean is over the ranks that have one.
    one = "for step in range(40):\n    exe.run(feed=joined(step, [1, 2] if step < 20 else [2]))\nwrite('alone')\n"
    succeeds(alone(tmp_path, script(tmp_path, one, "one.py", optimizer="Adam")))
    job = script(tmp_path, UNEVEN.replace("write", "fleet.barrier_worker(); write"), optimizer="Adam")
    succeeds(fleetrun(tmp_path, "--nproc_per_node=3", job))
    expected = values(tmp_path, "alone")
    for rank in range(3):
        got = values(tmp_path, f"rank{rank}")
        assert np.linalg.norm(got - expected) < 1e-6 * np.linalg.norm(expected), rank


def test_a_script_of_a_rank_without_data_may_just_end(tmp_path):
    text = "for step in range(5 * rank):\n    exe.run(feed=batch(step, rank))\nprint('trained', rank, flush=True)\n"
    said = succeeds(fleetrun(tmp_path, "--nproc_per_node=2", script(tmp_path, text)))
    assert "trained 0" in said and "trained 1" in said


FUNCTIONS = """
double = fleet.all_reduce(np.array([1.0, rank]), "sum")
whole = fleet.util.all_reduce(np.array([2**60 + rank]), "max")
mean = fleet.util.all_reduce(np.array([rank], "float32"), "mean")
gathered = fleet.util.all_gather(np.array([rank, rank]))
sent = fleet.util.broadcast(np.array([rank + 0.5]), root=1)
auc = fleet.metrics.auc([0, 0, rank], [1 - rank, 0, 0])
lists = [double.tolist(), whole.tolist(), mean.dtype, mean.tolist(), np.array(gathered).tolist(), sent, auc]
print("RESULT", *lists, flush=True)
fleet.barrier_worker()
try:
    fleet.all_reduce(1.0, "product")
except ValueError as error:
    print("REFUSED", str(error).splitlines()[-1], flush=True)
"""


def test_all_reduce_gather_broadcast_and_metrics_work_without_servers(tmp_path):
    said = succeeds(fleetrun(tmp_path, "--nproc_per_node=2", script(tmp_path, FUNCTIONS)))
    expected = f"RESULT [2.0, 1.0] [{2**60 + 1}] float32 [0.5] [[0, 0], [1, 1]] [1.5] 1.0"
    assert said.count(expected) == 2, said
    assert said.count("REFUSED hint: choose one of `sum`, `max`, `min`, `mean`") == 2, said


def test_ranks_that_do_different_things_get_an_error_that_names_both(tmp_path):
    text = "fleet.barrier_worker() if rank else fleet.all_reduce(np.zeros(3))\n"
    ran = fleetrun(tmp_path, "--nproc_per_node=2", script(tmp_path, text))
    assert ran.returncode == 1
    assert "an all-reduce of 3 numbers" in ran.stderr and "a barrier" in ran.stderr, ran.stderr
    assert "openfleet.RankError" in ran.stderr, ran.stderr


EPOCHS = """
def epochs(first=0):
    for epoch in range(first, 4):
        for step in range(25 * epoch, 25 * epoch + 25):
            exe.run(feed=batch(step, rank))
            time.sleep(PAUSE)
        if fleet.is_first_worker():
            fleet.save_persistables(exe, f"{NAME}-{epoch}")
        print(f"epoch {epoch} ends", flush=True)
    write(f"{NAME}{rank}")
"""


def run_and_kill(directory, path, words):
    """Starts a job of two ranks, kills the second one when these words have been printed, and waits for the end."""
    running = subprocess.Popen(
        [sys.executable, "-m", "openfleet.launch", "--nproc_per_node=2", "--max_restarts=1", path],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in running.stdout:
        lines.append(line)
        if line.startswith("[worker 1]") and words in line:
            pid = int((directory / "pid1").read_text())
            os.kill(pid, signal.SIGKILL)
            break
    lines += running.stdout.readlines()
    said = "".join(lines)
    assert running.wait(180) == 0, said
    assert "all 2 processes restart (restart 1 of 1)" in said, said
    return said


PID = 'open(f"pid{rank}", "w").write(str(os.getpid()))\n'


def test_a_killed_rank_returns_all_to_the_checkpoint_and_no_batch_or_save_is_repeated(tmp_path):
    for name, pause in (("straight", 0.0), ("broken", 0.02)):
        text = f"NAME, PAUSE = {name!r}, {pause}\n" + EPOCHS + PID + "epochs()\n"
        path = script(tmp_path, text, f"{name}.py", optimizer="Adam")
        if name == "straight":
            succeeds(fleetrun(tmp_path, "--nproc_per_node=2", path))
        else:
            said = run_and_kill(tmp_path, path, "epoch 1 ends")
    # The job returns to the save of epoch 0 or 1, whichever the launcher knew of.
    (returned,) = set(re.findall(r"returns to the checkpoint `broken-(\d)`", said))
    for epoch in range(int(returned)):
        assert f"saving `broken-{epoch}` is skipped: it was done before the job was restarted" in said, said
    for rank in range(2):
        assert (values(tmp_path, f"broken{rank}") == values(tmp_path, f"straight{rank}")).all()
    for epoch in range(4):
        compared = subprocess.run(
            [sys.executable, "-m", "openfleet.cli", "diff", f"straight-{epoch}", f"broken-{epoch}"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert compared.returncode == 0, (epoch, compared.stdout)


def test_a_script_that_resumes_by_itself_skips_no_batches(tmp_path):
    resumes = """
import glob
done = [int(path.split("-")[1]) for path in glob.glob(f"{NAME}-*") if os.path.exists(path + "/manifest.json")]
if done:
    static.load(static.default_main_program(), f"{NAME}-{max(done)}")
epochs(max(done) + 1 if done else 0)
"""
    for name, pause in (("straight", 0.0), ("broken", 0.02)):
        text = f"NAME, PAUSE = {name!r}, {pause}\n" + EPOCHS + PID + resumes
        path = script(tmp_path, text, f"{name}.py", optimizer="Adam")
        if name == "straight":
            succeeds(fleetrun(tmp_path, "--nproc_per_node=2", path))
        else:
            said = run_and_kill(tmp_path, path, "epoch 1 ends")
    assert "by itself: no batches are skipped" in said, said
    for rank in range(2):
        assert (values(tmp_path, f"broken{rank}") == values(tmp_path, f"straight{rank}")).all()


def test_a_checkpoint_of_ranks_is_loaded_by_one_process_and_by_another_number_of_ranks(tmp_path):
    text = STEPS + "fleet.save_persistables(exe, 'model')\n"
    succeeds(fleetrun(tmp_path, "--nproc_per_node=2", script(tmp_path, text, optimizer="Adam")))
    load = "fleet.init_worker()\nfleet.load_model('model')\nwrite(f'loaded{rank}')\n"
    path = script(tmp_path, load, "load.py", optimizer="Adam")
    succeeds(alone(tmp_path, path))
    assert (values(tmp_path, "loaded0") == values(tmp_path, "rank0")).all()
    succeeds(fleetrun(tmp_path, "--nproc_per_node=3", path))
    for rank in range(3):
        assert (values(tmp_path, f"loaded{rank}") == values(tmp_path, "rank0")).all()


def ranks_by_hand(directory, path, sets):
    started = [
        subprocess.Popen(
            [sys.executable, path],
            cwd=directory,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for variables in sets
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    return [process.returncode for process in started], said


def paddle_variables(ports, rank, count=None):
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(count or len(ports)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
    }


def test_ranks_come_from_the_variables_of_paddlepaddle_and_torchrun_and_from_arguments(tmp_path):
    path = script(tmp_path, "fleet.barrier_worker()\nprint('met', rank, 'of', ranks, flush=True)\n")
    ports = free_ports(2)
    sets = {"paddle": [paddle_variables(ports, rank) for rank in range(2)]}
    (port,) = free_ports(1)
    torch = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sets["torchrun"] = [{**torch, "RANK": str(rank)} for rank in range(2)]
    for name, variables in sets.items():
        codes, said = ranks_by_hand(tmp_path, path, variables)
        assert codes == [0, 0] and all(f"met {rank} of 2" in said[rank] for rank in range(2)), (name, said)
    with open(path) as file:
        text = file.read()
    endpoints = [f"127.0.0.1:{port}" for port in free_ports(2)]
    maker = f'fleet.init(fleet.UserDefinedCollectiveRoleMaker(int(os.environ["ME"]), {endpoints}))'
    (tmp_path / "arguments.py").write_text(text.replace("fleet.init(is_collective=True)", maker))
    codes, said = ranks_by_hand(tmp_path, "arguments.py", [{"ME": "0"}, {"ME": "1"}])
    assert codes == [0, 0] and "met 1 of 2" in said[1], said


def test_wrong_ranks_get_clear_errors_within_the_limit(tmp_path):
    path = script(tmp_path, "fleet.barrier_worker()\n")
    ports = free_ports(3)
    missing = [{**paddle_variables(ports[:2], 0), "OPENFLEET_WAIT_SECONDS": "2"}]
    codes, said = ranks_by_hand(tmp_path, path, missing)
    assert codes == [1] and "openfleet.RankError: rank 1" in said[0] and "within 2" in said[0], said
    # Another number of ranks than the rest of the job has.
    wrong = [
        {**paddle_variables(ports[:2], 0), "OPENFLEET_WAIT_SECONDS": "4"},
        {**paddle_variables(ports, 1), "OPENFLEET_WAIT_SECONDS": "4"},
    ]
    codes, said = ranks_by_hand(tmp_path, path, wrong)
    assert codes[1] == 1 and "rank 0 was started with 2 ranks, this process with 3" in said[1], said
    # Two processes of one rank.
    ports = free_ports(3)
    twice = [paddle_variables(ports, rank) for rank in (0, 1, 1)]
    twice = [{**variables, "OPENFLEET_WAIT_SECONDS": "4"} for variables in twice]
    del twice[2]["PADDLE_CURRENT_ENDPOINT"]
    codes, said = ranks_by_hand(tmp_path, path, twice)
    assert 1 in codes and any("same rank" in one or "another process has joined as rank 1" in one for one in said), said


def test_a_dataset_of_two_files_trains_on_three_ranks(tmp_path, clicks):
    files = clicks(files=2, rows=300)
    (tmp_path / "job.py").write_text(f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import openfleet.fleet as fleet
from conftest import Clicks
from openfleet import static
from openfleet.dataset import InMemoryDataset

fleet.init(is_collective=True)
model = Clicks(fleet.distributed_optimizer(static.optimizer.Adam(0.05)))
exe = static.Executor()
exe.run(static.default_startup_program())
dataset = InMemoryDataset()
dataset.init(batch_size=20, use_var=model.fields, thread_num=4)
dataset.set_filelist(fleet.split_files({files!r}))
dataset.load_into_memory()
dataset.global_shuffle()
for epoch in range(3):
    exe.train_from_dataset(dataset=dataset)
positive, negative = model.counters[-2:]
print("AUC", round(fleet.metrics.auc(positive, negative), 4), flush=True)
""")
    said = succeeds(fleetrun(tmp_path, "--nproc_per_node=3", "job.py"))
    aucs = [float(line.split()[-1]) for line in said.splitlines() if "AUC" in line]
    assert len(aucs) == 3 and len(set(aucs)) == 1 and aucs[0] > 0.7, said
    assert "using 1 training thread instead of 4" in said


def test_ctrl_c_ends_a_rank_that_waits_for_the_others(tmp_path):
    # A program that was started in the background may ignore Ctrl-C.
    takes = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    with open(script(tmp_path, "fleet.barrier_worker()\n")) as file:
        (tmp_path / "rank.py").write_text(takes + file.read())
    waiting = subprocess.Popen(
        [sys.executable, "rank.py"],
        cwd=tmp_path,
        env=environment(**paddle_variables(free_ports(2), 0)),
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in waiting.stderr:
        if "waits for rank 1" in line:
            break
    waiting.send_signal(signal.SIGINT)
    _, rest = waiting.communicate(timeout=60)
    assert waiting.returncode != 0 and "KeyboardInterrupt" in rest, rest


NORMED = """
import numpy as np
import openfleet.fleet as fleet
from openfleet import static

fleet.init(is_collective=True)
x = static.data("x", [None, 2])
normed = static.nn.batch_norm(x, momentum=0.5)
loss = static.nn.mean(static.nn.fc(normed, size=1))
fleet.distributed_optimizer(static.optimizer.SGD(0.0)).minimize(loss)
exe = static.Executor()
exe.run(static.default_startup_program())
rank = fleet.worker_index()
# The columns of rank 0 have the means 0 and 2, those of rank 1 the means 4 and 6.
for step in range(20):
    exe.run(feed={"x": np.array([[-1.0, 1.0], [1.0, 3.0]]) + 4 * rank})
mean = np.array(static.global_scope().var("batch_norm_0.w_1").get_tensor())
print("MEAN", mean.round(3).tolist(), flush=True)
"""


def test_running_statistics_of_batch_norm_are_averaged_over_the_ranks(tmp_path):
    (tmp_path / "job.py").write_text(NORMED)
    said = succeeds(fleetrun(tmp_path, "--nproc_per_node=2", "job.py"))
    assert said.count("MEAN [2.0, 4.0]") == 2, said
