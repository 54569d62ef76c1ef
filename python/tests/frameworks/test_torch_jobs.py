"""Jobs of PyTorch models in real processes: interrupted, restarted, with several models, with workers without data.

Run by `make test-frameworks`; skipped where PyTorch is not installed.
"""

import importlib.util
import re
import signal

import pytest
from frameworks.torch_jobs import COUNTER, LAYERS, STRATEGIES, Processes, freeze, read_until, run, write_script

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: `make test-frameworks` installs it", allow_module_level=True)

import torch  # noqa: E402

SYNC, ASYNC = STRATEGIES["sync"], STRATEGIES["async"]
TWO_WORKERS = ("--server_num=2", "--worker_num=2")
ONE_WORKER = ("--server_num=2", "--worker_num=1")

# Worker 0 is interrupted in a forward. Worker 1 is interrupted in a step: it has its gradients before servers freeze.
INTERRUPTED = f"""{COUNTER}
import threading

def tell_when_in(function):
    main = threading.main_thread().ident

    def watch():
        while sys._current_frames()[main].f_code.co_name != function:
            pass
        print("inside", flush=True)

    threading.Thread(target=watch, daemon=True).start()

fleet.init_worker()
for _ in range(3):
    train([1, 2])
if fleet.worker_index() == 1:
    model(torch.tensor([[1, 2]])).backward()
print("ready", flush=True)
sys.stdin.readline()
try:
    if fleet.worker_index() == 0:
        tell_when_in("look_up")
        model(torch.tensor([[1, 2]]))
    else:
        tell_when_in("push")
        optimizer.step()
    print("over", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


def test_ctrl_c_ends_a_forward_and_a_step_that_wait_for_frozen_servers(tmp_path):
    with Processes(write_script(tmp_path, INTERRUPTED, SYNC), server_count=2, worker_count=2) as job:
        for worker in job.workers:
            read_until(worker, "ready")
        try:
            for server in job.servers:
                freeze(server)
            for worker in job.workers:
                worker.stdin.write("\n")
                read_until(worker, "inside")
                worker.send_signal(signal.SIGINT)
            for worker in job.workers:
                assert "over" not in read_until(worker, "interrupted")
                assert worker.wait() == -signal.SIGINT
        finally:
            for server in job.servers:
                server.send_signal(signal.SIGCONT)


LOOP = f"""{COUNTER}
for _ in range(5):
    try:
        for step in range(10**9):
            train([1, 2])
            if step == 20:
                print("training", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
train([1, 2])
rows = counts(range(3))
print("rows and steps agree:", rows[0] == "0" and rows[1] == rows[2] == rows[3], rows, flush=True)
"""


def test_ctrl_c_in_a_process_alone_applies_each_step_to_rows_and_parameters_or_to_neither(tmp_path):
    with Processes(write_script(tmp_path, LOOP, SYNC)) as job:
        (worker,) = job.workers
        for _ in range(5):
            read_until(worker, "training")
            worker.send_signal(signal.SIGINT)
            read_until(worker, "interrupted")
        said = worker.stdout.read()
        assert worker.wait() == 0 and "rows and steps agree: True" in said, said


MODELS = f"""{LAYERS}
models = [build(0), build(1, name="second")]
fleet.init_worker()
for steps in zip(batches(1), batches(2)):
    for (model, optimizer), (ids, labels) in zip(models, steps):
        train(model, optimizer, ids, labels)
torch.save([learnt(model) for model, _ in models], "models.pt")
fleet.stop_worker()
"""
# With servers two models have one optimizer. The second step of a pair trains the second model only.
ONE_OPTIMIZER = f"""{LAYERS}
models = torch.nn.ModuleList([layers(0), layers(1)])
optimizer = fleet.distributed_optimizer(torch.optim.Adam(models.parameters(), lr=0.01), strategy, models)
fleet.init_worker()
rank, count = fleet.worker_index(), fleet.worker_num()
part = slice(rank * 16 // count, (rank + 1) * 16 // count)
for steps in zip(batches(1, part), batches(2, part)):
    for model, (ids, labels) in zip(models, steps):
        train(model, optimizer, ids, labels)
fleet.util.barrier()
if rank == 0:
    torch.save([learnt(model) for model in models], "models.pt")
fleet.util.barrier()
fleet.stop_worker()
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What two models have learnt in one process."""
    script = write_script(tmp_path_factory.mktemp("alone"), MODELS, SYNC)
    run(script)
    return torch.load(script.parent / "models.pt", weights_only=True)


def assert_equal(learnt, expected):
    assert len(learnt) == len(expected)
    for one, other in zip(learnt, expected):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_two_models_in_one_job_have_one_optimizer_and_train_as_in_one_process(tmp_path):
    learnt = []
    for name, launch in (("alone", ()), ("job", TWO_WORKERS)):
        run(write_script(tmp_path / name, ONE_OPTIMIZER, SYNC), *launch)
        learnt.append(torch.load(tmp_path / name / "models.pt", weights_only=True))
    for one, other in zip(*learnt):
        assert_equal(one, other)


@pytest.mark.parametrize("launch", [ONE_WORKER, ("--nproc_per_node=2",)], ids=["servers", "ranks"])
def test_a_second_optimizer_in_a_job_is_refused_with_the_way_out(launch, tmp_path):
    text = f"""{LAYERS}
build(0)
try:
    build(1, name="second")
except NotImplementedError as error:
    print("refused:", error, flush=True)
fleet.init_worker()
fleet.stop_worker()
"""
    said = run(write_script(tmp_path, text, SYNC), *launch)
    assert "refused: a second PyTorch model with an optimizer of its own" in said, said
    assert "hint: put the models into a `torch.nn.ModuleList`" in said, said


IDLE = f"""{LAYERS}
model, optimizer = build(0)
fleet.init_worker()
if fleet.worker_index() != IDLE_RANK:
    for ids, labels in batches(1):
        train(model, optimizer, ids, labels)
    torch.save(learnt(model), "model.pt")
fleet.util.barrier()
fleet.stop_worker()
"""
# With these settings async computes what one process does.
EXACT = {"a_sync": True, "a_sync_configs": {"wire_bits": 32, "max_merge_var_num": 1, "independent_recv_thread": False}}


@pytest.mark.parametrize("mode, idle", [("sync", 1), ("async", 0), ("ranks", 0)])
def test_a_worker_without_data_changes_nothing_for_the_others(mode, idle, alone, tmp_path):
    script = write_script(tmp_path, f"IDLE_RANK = {idle}\n{IDLE}", EXACT if mode == "async" else SYNC)
    run(script, *(["--nproc_per_node=2"] if mode == "ranks" else TWO_WORKERS))
    assert_equal(torch.load(tmp_path / "model.pt", weights_only=True), alone[0])


WATCHES = f"""{COUNTER}
fleet.init_worker()
for number in range(2):
    if fleet.worker_index() == 1:
        for _ in range(20):
            train([1])
    fleet.util.barrier()
    if fleet.worker_index() == 0:
        print("counts", counts(range(2)), flush=True)
    fleet.util.barrier()
fleet.stop_worker()
"""


def test_a_worker_without_data_evaluates_what_the_others_have_learnt(tmp_path):
    said = run(write_script(tmp_path, WATCHES, ASYNC), *TWO_WORKERS)
    assert counts_in(said) == ["0 20 20", "0 40 40"], said


def counts_in(said):
    """The counts that a job has printed, the steps last."""
    return [re.sub("[^0-9. ]", "", counts) for counts in re.findall(r"counts (\[.*\])", said)]


RATES = f"""{COUNTER}
scheduler = torch.optim.lr_scheduler.LambdaLR(rule, lambda step: [1.0, 0.5, 0.25, 0.0, 0.0][step // 7])
fleet.init_worker()
for _ in range(28):
    train([1, 2, 2])
    scheduler.step()
fleet.util.barrier()
print("counts", counts(range(3)), flush=True)
fleet.stop_worker()
"""


@pytest.mark.parametrize("mode", ["half_async", "async", "hybrid", "geo"])
def test_every_step_is_applied_at_its_own_learning_rate(mode, tmp_path):
    """7 steps each at 1, 0.5, 0.25 and 0: together 12.25, and the last ones change nothing."""
    said = run(write_script(tmp_path, RATES, STRATEGIES[mode]), *ONE_WORKER)
    assert counts_in(said) == ["0 12.25 24.5 12.25"], said


SERVER_DIES = f"""{LAYERS}
def kill_server_once():
    pid, progress = open("server.1").read().split()
    # Once a server has reported the checkpoint, the launcher knows it too.
    while SAVES and not os.path.exists("killed") and "checkpoint" not in open(progress).read():
        pass
    kill_once(int(pid))

model, optimizer = build(0)
fleet.init_worker()
rank = fleet.worker_index()
for number, (ids, labels) in enumerate(batches(1, slice(rank * 8, rank * 8 + 8))):
    train(model, optimizer, ids, labels)
    if SAVES and number == 20 and rank == 0:
        fleet.save_persistables(model, "saved")
    if number == 40 and rank == 0:
        kill_server_once()
fleet.util.barrier()
if rank == 0:
    torch.save(learnt(model), "model.pt")
fleet.util.barrier()
fleet.stop_worker()
"""


@pytest.mark.parametrize("saves", [True, False])
def test_a_job_returns_to_its_checkpoint_or_its_beginning_when_a_server_is_killed(saves, alone, tmp_path):
    script = write_script(tmp_path, f"SAVES = {saves}\n{SERVER_DIES}", SYNC)
    said = run(script, *TWO_WORKERS, "--max_restarts=1")
    assert ("from checkpoint `saved` of step 21" if saves else "from the beginning") in said, said
    assert_equal(torch.load(tmp_path / "model.pt", weights_only=True), alone[0])


WORKER_DIES = f"""{COUNTER}
fleet.init_worker()
for number in range(60):
    train([number % 5, 4])
    if number == 30 and fleet.worker_index() == 1:
        kill_once(os.getpid())
fleet.util.barrier()
if fleet.worker_index() == 0:
    print("counts", counts(range(5)), flush=True)
fleet.util.barrier()
fleet.stop_worker()
"""


def test_every_step_counts_once_when_a_worker_is_killed_in_async_mode(tmp_path):
    said = run(write_script(tmp_path, WORKER_DIES, ASYNC), *TWO_WORKERS, "--max_restarts=1")
    assert "worker 1 of 2: resumes after 0 complete passes" in said, said
    assert counts_in(said) == ["24 24 24 24 144 120"], said


GROWS = """
class Growing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.weight = EmbeddingBag(1), torch.nn.Parameter(torch.ones(1))

    def forward(self, ids):
        return self.rows(ids).sum() - (self.weight**2).sum() / 2

model = Growing()
rule = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = fleet.distributed_optimizer(rule, strategy, model, dense="local")
fleet.init_worker()
for number in range(60):
    optimizer.zero_grad()
    model(torch.tensor([[number]])).backward()
    optimizer.step()
    if number == 30 and fleet.worker_index() == 1:
        kill_once(os.getpid())
if fleet.worker_index() == 0:
    print("weight", model.weight.item(), flush=True)
fleet.stop_worker()
"""


def test_a_restarted_worker_goes_on_with_the_parameters_of_the_job(tmp_path):
    """Each of 60 steps adds a tenth to the weight, in both workers."""
    said = run(write_script(tmp_path, GROWS, SYNC), *TWO_WORKERS, "--max_restarts=1")
    (weight,) = re.findall(r"weight ([0-9.]+)", said)
    assert float(weight) == pytest.approx(1.1**60, rel=1e-5), said


LOADER = f"""{COUNTER}
class Ids(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([index % 5, 4])

def main():
    fleet.init_worker()
    for context in ("fork", "spawn"):
        options = {{"multiprocessing_context": context, "persistent_workers": context == "spawn"}}
        loader = torch.utils.data.DataLoader(Ids(), batch_size=4, num_workers=2, **options)
        for _ in range(2):
            for ids in loader:
                train(ids.flatten().tolist())
        train([0])
        print("counts", counts(range(5)), flush=True)
    fleet.stop_worker()

if __name__ == "__main__":
    main()
"""


def test_training_goes_on_while_and_after_workers_of_a_data_loader_live(tmp_path):
    said = run(write_script(tmp_path, LOADER, SYNC), *ONE_WORKER)
    assert counts_in(said) == ["17 16 16 16 96 21", "34 32 32 32 192 42"], said


EVALUATED = f"""{COUNTER}
fleet.init_worker()
for number in range(40):
    train([number, 99])
    if fleet.worker_index() == 0 and number % 10 == 5:
        model.eval()
        with torch.no_grad():
            model(torch.arange(1000, 2000)[None])
        model.train()
fleet.util.barrier()
if fleet.worker_index() == 0:
    print(fleet.table_rows(), "counts", counts([0, 39, 99, 1000]), flush=True)
fleet.util.barrier()
fleet.stop_worker()
"""


def test_an_evaluation_while_others_train_waits_for_nobody_and_creates_no_rows(tmp_path):
    said = run(write_script(tmp_path, EVALUATED, ASYNC), *TWO_WORKERS)
    assert "{'rows.rows': 41}" in said and counts_in(said) == ["2 2 80 0 80"], said
