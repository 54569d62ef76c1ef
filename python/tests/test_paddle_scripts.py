"""The PaddlePaddle scripts in tests/paddle_scripts, run unmodified by real processes."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from processes import free_ports

from openfleet import static

SCRIPTS = Path(__file__).parents[2] / "tests" / "paddle_scripts"
COMPAT = [sys.executable, "-u", "-m", "openfleet.compat"]
FLEETRUN = [sys.executable, "-m", "openfleet.launch"]
SECONDS = 120
MACHINES = ["10.89.176.11", "10.89.176.12"]


class Process:
    """One process, whose output is read as it comes."""

    def __init__(self, command, **variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PADDLE_", "OPENFLEET_", "TRAINING_"))}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**environment, **variables}
        )
        self.lines, self.changed = [], threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()

    @property
    def said(self):
        return "".join(self.lines)

    def wait_to_say(self, words):
        with self.changed:
            assert self.changed.wait_for(lambda: words in self.said, SECONDS), f"never said {words!r}: {self.said}"

    def end(self):
        code = self.process.wait(SECONDS)
        self.reader.join(SECONDS)
        return code


@pytest.fixture
def start():
    """Starts processes, and ends those that are left."""
    started = []

    def start(*args, **variables):
        started.append(Process(*args, **variables))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(SECONDS)
        one.process.stdout.close()


def all_end_well(processes):
    codes = [one.end() for one in processes]
    assert codes == [0] * len(codes), [one.said for one in processes]


def falls(costs, factor):
    """Whether the last fifth of some numbers is well below the first twentieth, on average."""
    first, last = costs[: max(1, len(costs) // 20)], costs[-max(1, len(costs) // 5) :]
    return sum(last) / len(last) < factor * sum(first) / len(first)


def launched(command, cwd, **variables):
    run = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **variables}
    )
    return run.returncode, run.stdout + run.stderr


def openks_trains(code, said, passes):
    assert code == 0, said
    assert "mode sync" in said
    for worker in range(2):
        pattern = rf"\[worker {worker}\] pass \d+ cost ([\d.]+) auc ([\d.]+) batch auc ([\d.]+)"
        steps = [tuple(map(float, step)) for step in re.findall(pattern, said)]
        assert len(steps) == 50 * passes, said
        assert falls([cost for cost, _, _ in steps], 0.75)
        assert steps[-1][1] > 0.75


def test_script_000_trains_under_its_own_launcher(tmp_path):
    command = [sys.executable, "-m", "openks_launcher", "--mode", "cpu", "--worker_num", "2", "--server_num", "2"]
    openks_trains(*launched([*command, str(SCRIPTS / "000_openks.py")], tmp_path), passes=3)


def test_script_000_trains_by_its_shell_script_and_passes_arguments_on(tmp_path):
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    command = [str(SCRIPTS / "run_parameter_server.sh"), "--passes", "4"]
    openks_trains(*launched(command, tmp_path, PATH=path, LOG_DIR=str(tmp_path / "log")), passes=4)


def collective_trains(code, said, passes):
    assert code == 0, said
    assert "mode collective: every step applies the mean of all ranks' gradients" in said
    for worker in range(2):
        pattern = rf"\[worker {worker}\] pass \d+ cost ([\d.]+) auc ([\d.]+)"
        steps = [tuple(map(float, step)) for step in re.findall(pattern, said)]
        assert len(steps) == 50 * passes, said
        assert falls([cost for cost, _ in steps], 0.75)
        assert steps[-1][1] > 0.75
        gpu = rf"\[worker {worker}\] openfleet: the script asks for GPUs \(`flag=1`\): there is no GPU support here"
        assert len(re.findall(gpu, said)) == 1, said


def test_script_000_with_flag_1_trains_under_its_own_launcher(tmp_path):
    # The command of the document has servers in both modes.
    command = [sys.executable, "-m", "openks_launcher", "--mode", "gpu", "--worker_num", "2", "--server_num", "2"]
    code, said = launched([*command, str(SCRIPTS / "000_openks_collective.py"), "--passes", "2"], tmp_path)
    collective_trains(code, said, passes=2)
    assert "warning: --server_num has no effect in mode gpu, which has no servers" in said


@pytest.fixture
def python_with_paddle():
    """A search path whose `python` can `import paddle`, as after `python -m openfleet.compat --enable`."""
    switch = [sys.executable, "-m", "openfleet.compat"]
    subprocess.run([*switch, "--enable"], check=True, capture_output=True)
    try:
        yield os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    finally:
        subprocess.run([*switch, "--disable"], check=True, capture_output=True)


def test_script_000_with_flag_1_trains_by_its_shell_script(tmp_path, python_with_paddle):
    command = [str(SCRIPTS / "run_collective.sh"), "--passes", "2"]
    code, said = launched(command, tmp_path, PATH=python_with_paddle, LOG_DIR=str(tmp_path / "log"))
    collective_trains(code, said, passes=2)
    assert "there is no GPU support here, so they train on CPUs" in said


def test_without_the_switch_a_plain_python_does_not_import_paddle():
    run = subprocess.run([sys.executable, "-c", "import paddle"], capture_output=True, text=True)
    assert run.returncode == 1 and "No module named 'paddle'" in run.stderr


LAUNCH = [*COMPAT, "-m", "paddle.distributed.launch"]


@pytest.mark.parametrize(
    "mode, words", [("", "every step applies the mean"), ("local_sgd", "average their parameters")]
)
def test_script_001_trains_collectively_and_continues_from_its_checkpoint(tmp_path, mode, words):
    command = [*LAUNCH, "--gpus", "0,1", str(SCRIPTS / "001_collective.py"), str(tmp_path / "model"), *mode.split()]
    for first in (0, 3):
        code, said = launched(command, tmp_path)
        assert code == 0 and words in said, said
        for rank in range(2):
            assert f"[worker {rank}] worker {rank} of 2 begins at epoch {first}" in said, said
            costs = [float(cost) for cost in re.findall(rf"\[worker {rank}\] epoch \d cost ([\d.]+)", said)]
            assert len(costs) == 3 and costs[-1] < costs[0], said
    # The older checkpoints were removed.
    assert sorted(os.listdir(tmp_path / "model")) == ["checkpoint.5", "status.5.json"]


def test_the_functions_of_paddle_distributed_work_in_a_collective_job(tmp_path):
    script = str(SCRIPTS / "distributed_functions.py")
    code, said = launched([*LAUNCH, "--nproc_per_node", "2", script], tmp_path)
    assert code == 0, said
    result = "RESULT [2.0, 1.0] [1, 0] [0.5] [11] [[0, 0], [1, 1]] [{'rank': 0}, {'rank': 1}]"
    assert said.count(result) == 2, said
    assert said.count("REFUSED `paddle.distributed.all_reduce` of a variable: a variable has no value") == 2, said


def test_launch_without_options_starts_one_process(tmp_path):
    (tmp_path / "one.py").write_text("import paddle.distributed as dist\nprint('of', dist.get_world_size())\n")
    code, said = launched([*LAUNCH, "one.py"], tmp_path)
    assert code == 0 and "[worker 0] of 1" in said, said
    code, said = launched([*COMPAT, "-m", "paddle.distributed.launch_ps", "--worker_num=1", "one.py"], tmp_path)
    assert "2 servers and 1 worker" in said and "of 1" in said, said


# Every option of PaddlePaddle 2.6's launchers, with its default or a usual value: first those that have an effect.
FLAGS = {
    "paddle.distributed.launch": (
        "--master 127.0.0.1:6170 --rank 0 --nnodes 1 --nproc_per_node 2 --log_level WARNING --log_overwrite True "
        "--log_dir logs --run_mode collective --job_id default --devices 0,1 --start_port 6170 --max_restart 1 "
        "--elastic_level 1",
        "--legacy False --sort_ip False --enable_gpu_log True --auto_parallel_config a.json --auto_tuner_json a.json "
        "--gloo_port 6767 --with_gloo 1 --elastic_timeout 30 --host 127.0.0.1",
    ),
    "paddle.distributed.fleet.launch": (
        "--server_num 1 --worker_num 2 --log_dir logs --run_mode ps --job_id default",
        "--backend auto --ips 127.0.0.1 --cluster_topo_path a.json --rank_mapping_path a.json "
        "--enable_auto_mapping False --coordinators 127.0.0.1:1 --heter_workers a:1;b:1 --heter_devices cpu "
        "--coordinator_num 1 --heter_worker_num 1 --http_port 6767 --elastic_server a:1 --elastic_pre_hook true "
        "--np 1 --scale 0 --force False --host 127.0.0.1",
    ),
}


@pytest.mark.parametrize("module", FLAGS)
def test_every_option_of_paddlepaddles_launchers_is_taken(tmp_path, module):
    (tmp_path / "one.py").write_text("import os\nprint('rank', os.environ.get('PADDLE_TRAINER_ID'))\n")
    honoured, others = FLAGS[module]
    # A server that does nothing would end the job: only its command line is looked at.
    dry = ["--dry-run"] if "fleet" in module else []
    code, said = launched([*COMPAT, "-m", module, *honoured.split(), *others.split(), *dry, "one.py"], tmp_path)
    assert code == 0 and "2 workers" in said and "logs in `logs`" in said, said
    if not dry:
        assert "[worker 0] rank 0" in said and "[worker 1] rank 1" in said, said
    names = [word[2:].replace("_", "-") for word in others.split() if word.startswith("--")]
    assert [name for name in names if said.count(f"`--{name}` has no effect: ") != 1] == []
    assert said.count("has no effect") == len(names), said
    code, said = launched([*COMPAT, "-m", module, "--server_nums=1", "one.py"], tmp_path)
    assert code == 2 and "unexpected argument '--server_nums' found" in said and "a similar argument exists" in said


def test_script_001_prints_costs_that_fall_and_an_auc_that_rises(start):
    endpoints = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    command = [*COMPAT, str(SCRIPTS / "001_fleet_api.py")]
    roles = [("worker", 0), ("worker", 1), ("server", 0), ("server", 1)]
    processes = [start([*command, role, str(rank), endpoints]) for role, rank in roles]
    all_end_well(processes)
    for one in processes[:2]:
        steps = re.findall(r"Pass (\d+), cost = ([\d.]+), auc = ([\d.]+), batch_auc = ([\d.]+)", one.said)
        assert [int(step[0]) for step in steps] == [number for number in range(10) for _ in range(20)]
        assert falls([float(step[1]) for step in steps], 0.6)
        aucs, batch_aucs = ([float(step[at]) for step in steps] for at in (2, 3))
        assert aucs[-1] > 0.85 and aucs[-1] > aucs[19]
        assert sum(batch_aucs[-20:]) / 20 > 0.9


@pytest.mark.parametrize("first", ["servers", "workers"])
def test_script_002_trains_with_its_variables_by_hand_in_either_order(start, first):
    ports = free_ports(2)
    common = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(f"127.0.0.1:{port}" for port in ports),
        "PADDLE_TRAINERS_NUM": "2",
    }
    command = [*COMPAT, str(SCRIPTS / "002_by_hand.py"), "--is_cloud=1"]

    def servers():
        own = {"TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1"}
        return [start(command, **common, **own, PADDLE_PORT=str(port)) for port in ports]

    def workers():
        return [start(command, **common, TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID=str(rank)) for rank in range(2)]

    if first == "servers":
        serving = servers()
        for one, port in zip(serving, ports):
            one.wait_to_say(f"127.0.0.1:{port}")
        working = workers()
    else:
        working = workers()
        for one in working:
            one.wait_to_say("server not ready, wait 3 sec to retry...")
            one.wait_to_say(f"not ready endpoints:['127.0.0.1:{ports[0]}', '127.0.0.1:{ports[1]}']")
        serving = servers()
    all_end_well([*working, *serving])
    for one in working:
        steps = re.findall(r"epoch \d cost ([\d.]+) auc ([\d.]+)", one.said)
        assert len(steps) == 200, one.said
        assert falls([float(cost) for cost, _ in steps], 0.8)
        assert float(steps[-1][1]) > 0.85


@pytest.fixture
def machines():
    """Two network namespaces joined by a virtual cable: the machines of script 002, with its addresses."""
    names = [f"paddle-{os.getpid()}-{letter}" for letter in "ab"]
    cables = [f"sd{os.getpid()}{letter}" for letter in "ab"]
    steps = [
        *(f"netns add {name}" for name in names),
        f"link add {cables[0]} netns {names[0]} type veth peer name {cables[1]} netns {names[1]}",
    ]
    for name, cable, address in zip(names, cables, MACHINES):
        steps += [
            f"-n {name} addr add {address}/24 dev {cable}",
            f"-n {name} link set {cable} up",
            f"-n {name} link set lo up",
        ]
    try:
        for step in steps:
            try:
                subprocess.run(["ip", *step.split()], check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                why = getattr(error, "stderr", None) or error
                print(f"skipped: network namespaces cannot be made here: `ip {step}`: {why}")
                pytest.skip(f"network namespaces cannot be made here: `ip {step}`: {why}")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            # Removing either end removes the virtual cable. A namespace that was never created is ignored.
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def script_002_job(machines, start):
    """Functions that start the servers and workers of script 002 on its machines, with the variables it prints."""
    command = [*COMPAT, str(SCRIPTS / "002_by_hand.py"), "--is_cloud=1"]
    common = {
        "PADDLE_PSERVERS_IP_PORT_LIST": "10.89.176.11:36000,10.89.176.12:36000",
        "PADDLE_TRAINERS_NUM": "2",
    }

    def servers():
        own = {"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": "36000"}
        places = zip(machines, MACHINES)
        return [start([*machine, *command], **common, **own, POD_IP=address) for machine, address in places]

    def workers():
        own = {"TRAINING_ROLE": "TRAINER"}
        places = enumerate(machines)
        return [start([*machine, *command], **common, **own, PADDLE_TRAINER_ID=str(rank)) for rank, machine in places]

    return servers, workers


@pytest.mark.parametrize("first", ["servers", "workers"])
def test_script_002_trains_on_its_two_machines_without_a_secret_and_says_its_lines(machines, start, first):
    servers, workers = script_002_job(machines, start)
    if first == "servers":
        serving = servers()
        for one, address in zip(serving, MACHINES):
            one.wait_to_say(f"Server listening on {address}:36000 selected port: 36000\n")
        working = workers()
    else:
        working = workers()
        for one in working:
            one.wait_to_say("server not ready, wait 3 sec to retry...\n")
            one.wait_to_say("not ready endpoints:['10.89.176.11:36000', '10.89.176.12:36000']\n")
        serving = servers()
    all_end_well([*working, *serving])
    for rank, one in enumerate(working):
        begun = f"Communicator start\ninit rpc client with trainer_id {rank}\n"
        assert one.said.count(begun) == 1, one.said
        assert len(re.findall(r"epoch \d cost ([\d.]+) auc ([\d.]+)", one.said)) == 200, one.said
    for one in [*working, *serving]:
        warnings = [line for line in one.lines if "warning" in line.lower() or "secret" in line.lower()]
        assert len(warnings) == 1, one.said
        assert "warning: there is no secret: anyone who can reach 10.89.176.1" in warnings[0], one.said


def test_without_a_secret_only_the_old_variables_and_private_addresses_are_taken(machines, start):
    script = [*COMPAT, str(SCRIPTS / "002_by_hand.py"), "--is_cloud=1"]
    own = {
        "OPENFLEET_ROLE": "server",
        "OPENFLEET_RANK": "0",
        "OPENFLEET_SERVERS": "10.89.176.11:36000",
        "OPENFLEET_WORKER_NUM": "1",
    }
    ours = start([*machines[0], *script], **own)
    # An address of the range that is reserved for benchmarks, which is not private.
    public = "198.18.0.1"
    subprocess.run([*machines[0], "ip", "addr", "add", f"{public}/32", "dev", "lo"], check=True)
    old = {
        "PADDLE_PSERVERS_IP_PORT_LIST": f"{public}:36001",
        "TRAINING_ROLE": "PSERVER",
        "POD_IP": public,
        "PADDLE_PORT": "36001",
        "PADDLE_TRAINERS_NUM": "1",
    }
    theirs = start([*machines[0], *script], **old)
    worker = start([*machines[1], *script], **{**old, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "0"})
    for one, words in [
        (ours, "refusing to listen on `10.89.176.11:36000` without a secret"),
        (theirs, f"refusing to listen on `{public}:36001` without a secret"),
        (worker, f"refusing to train with server `{public}:36001` without a secret"),
    ]:
        assert one.end() == 1, one.said
        assert words in one.said and "hint: set `OPENFLEET_SECRET` to the same text" in one.said, one.said


def test_script_003_trains_from_files_and_its_checkpoints_predict(tmp_path):
    """Training from files through a `pipe_command`, a checkpoint an epoch, inference with the counters zeroed.

    While `openfleet.static` has no `save_persistables`, the job ends where the first worker saves after one epoch,
    and this asserts so much; from then on it asserts the whole story.
    """
    (tmp_path / "model").mkdir()
    script = [str(SCRIPTS / "003_dataset.py"), "--data", str(tmp_path), "--model_path", str(tmp_path / "model")]
    saves = hasattr(static, "save_persistables")
    code, said = launched([*FLEETRUN, "--server_num=2", "--worker_num=2", "--compat", *script], tmp_path)
    costs = [float(cost) for cost in re.findall(r"\[worker 0\].*Epoch \d cost ([\d.]+)", said)]
    aucs = [float(auc) for auc in re.findall(r"\[worker 0\].*Epoch \d auc ([\d.]+)", said)]
    assert falls(costs, 0.9) and aucs[-1] > 0.6, said
    assert "[worker 0] epoch 0 finished" in said
    if not saves:
        assert code != 0 and "`save_persistables`: checkpoints are not available yet" in said
        return
    assert code == 0 and said.count("Distribute Train Success!") == 2, said
    code, said = launched([*COMPAT, *script, "--task", "infer"], tmp_path)
    assert code == 0, said
    inferred = re.findall(r"infer epoch (\d) auc ([\d.]+) of (\d+) rows", said)
    assert [(epoch, rows) for epoch, _, rows in inferred] == [("0", "1000"), ("1", "1000")], said
    assert float(inferred[-1][1]) > 0.75


def test_script_004_trains_with_geo_under_fleetrun(tmp_path):
    command = [*FLEETRUN, "--compat", "--server_num=2", "--worker_num=2", str(SCRIPTS / "004_geo.py"), str(tmp_path)]
    code, said = launched(command, tmp_path)
    assert code == 0, said
    assert "push differences every 400 batches" in said
    for worker in range(2):
        costs = [float(cost) for cost in re.findall(rf"\[worker {worker}\].*epoch \d cost ([\d.]+)", said)]
        assert len(costs) == 150 and falls(costs, 0.7), said
    aucs = [float(auc) for auc in re.findall(r"auc ([\d.]+)", said)]
    assert len(aucs) == 2 and min(aucs) > 0.8, said
