"""Starts jobs of real processes that train PyTorch models: by the launcher, or one process after the other."""

import os
import signal
import subprocess
import sys
import threading

from processes import environment, free_ports

STRATEGIES = {
    "sync": {"a_sync": False},
    "half_async": {"half_async": True},
    "async": {"a_sync": True},
    "hybrid": {"staleness": 4},
    "geo": {"a_sync": True, "a_sync_configs": {"k_steps": 5}},
}

# A server needs no model, and starts faster without PyTorch: workers tell it what their tables are.
_HEAD = """
import os, sys
from openfleet import fleet, static

fleet.init()
if fleet.is_server():
    open(f"server.{fleet.server_index()}", "w").write(f"{os.getpid()} {os.environ.get('OPENFLEET_PROGRESS_FILE')}")
    fleet.init_server()
    fleet.run_server()
    sys.exit()

import torch
from openfleet.torch import Embedding, EmbeddingBag

torch.set_num_threads(1)
strategy = fleet.DistributedStrategy()
for name, value in STRATEGY.items():
    setattr(strategy, name, value)

def kill_once(pid):
    if not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(pid, 9)
"""

# Every occurrence of an id adds -1 to its row, and every step adds -1 to a dense parameter.
COUNTER = """
class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = EmbeddingBag(1, mode="sum", initializer=static.initializer.Constant(0.0))
        self.steps = torch.nn.Parameter(torch.zeros(1))

    def forward(self, ids):
        return self.rows(ids).sum() + self.steps.sum()

model = Counter()
rule = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = fleet.distributed_optimizer(rule, strategy, model)

def train(ids):
    optimizer.zero_grad()
    model(torch.tensor([ids])).backward()
    optimizer.step()

def counts(keys):
    with torch.no_grad():
        rows = model.rows(torch.tensor([[key] for key in keys])).flatten().tolist()
    return ["%g" % (0 - count) for count in [*rows, model.steps.item()]]
"""

# Two layers on an embedding of three fields, trained on the same data in every process.
LAYERS = """
from torch.nn import functional

def layers(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1), torch.nn.Flatten(0)]
    return torch.nn.Sequential(Embedding(50, 4), *layers)

def build(seed, **options):
    model = layers(seed)
    rule = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, fleet.distributed_optimizer(rule, strategy, model, **options)

def batches(seed, part=slice(None)):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(60):
        ids = torch.randint(0, 50, (16, 3), generator=draw)
        yield ids[part], (ids[part, 0] % 2).float()

def train(model, optimizer, ids, labels):
    optimizer.zero_grad()
    functional.binary_cross_entropy_with_logits(model(ids), labels).backward()
    optimizer.step()

def learnt(model):
    with torch.no_grad():
        rows = model[0](torch.arange(50))
    return [rows, *model[1:].parameters()]
"""


def write_script(directory, text, strategy):
    """Writes the script of a job, which begins with what all scripts have, and returns its path."""
    directory.mkdir(exist_ok=True)
    path = directory / "job.py"
    path.write_text(f"STRATEGY = {strategy!r}\n{_HEAD}{text}")
    return path


def run(script, *launch):
    """Runs a script under the launcher with these options, or alone, and returns what it said."""
    command = [sys.executable, "-m", "openfleet.launch", *launch] if launch else [sys.executable]
    options = {"cwd": script.parent, "env": environment(), "capture_output": True, "text": True, "timeout": 180}
    ran = subprocess.run([*command, str(script)], check=False, **options)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    return said


class Processes:
    """The processes of a job without a launcher, which would kill a frozen one; without servers a process alone.

    Lines can be written to them, and read from them. The end of the block kills them, and so does a time limit.
    """

    def __init__(self, script, server_count=0, worker_count=1):
        self.script, self.worker_count = script, worker_count
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(server_count)]
        self.servers, self.workers = [], []
        self.limit = threading.Timer(150, self.kill)

    def __enter__(self):
        self.servers = [self._start("server", rank) for rank in range(len(self.addresses))]
        self.workers = [self._start("worker", rank) for rank in range(self.worker_count)]
        self.limit.start()
        return self

    def __exit__(self, *exception):
        self.limit.cancel()
        self.kill()
        for process in [*self.servers, *self.workers]:
            process.communicate()

    def kill(self):
        for process in [*self.servers, *self.workers]:
            process.kill()

    def _start(self, role, rank):
        variables = {"OPENFLEET_ROLE": role, "OPENFLEET_RANK": str(rank), "OPENFLEET_SERVERS": ",".join(self.addresses)}
        variables["OPENFLEET_WORKER_NUM"] = str(self.worker_count)
        given = environment(**(variables if self.addresses else {}))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command = [sys.executable, "-u", str(self.script)]
        return subprocess.Popen(command, cwd=self.script.parent, env=given, text=True, bufsize=1, **pipes)


def freeze(process):
    """Stops a process until SIGCONT."""
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "the process has ended"


def read_until(process, end):
    """Reads what a process says up to a line, and returns it with that line."""
    said = ""
    for line in process.stdout:
        said += line
        if line.strip() == end:
            return said
    raise AssertionError(f"the process has not said `{end}`: {said}")
