"""Several programs on one worker with servers: each reads and trains its own parameters, in every mode."""

import subprocess
import sys

import pytest
from processes import environment

# Two towers of different sizes; each has programs of its own that name its parameters only.
TOWERS = """
import sys
import numpy as np
import openfleet.fleet as fleet
from openfleet import static

fleet.init()

def tower(name, width, first):
    field = static.data(name, [None, width], "float32")
    attr = static.ParamAttr(name=f"{name}.w", initializer=static.initializer.Constant(first))
    return static.nn.fc(field, 1, weight_attr=attr, bias_attr=False)

main, startup = static.default_main_program(), static.default_startup_program()
user, item = tower("user", 2, 1.0), tower("item", 3, 10.0)
both = static.nn.mean(static.nn.concat([user, item], axis=1))
both_test = main.clone(for_test=True)
strategy = fleet.DistributedStrategy()
for name, value in STRATEGY.items():
    setattr(strategy, name, value)
fleet.distributed_optimizer(static.optimizer.SGD(1.0), strategy).minimize(both)

item_main = static.Program()
with static.program_guard(item_main):
    item_only = tower("item", 3, 10.0)
    item_test = item_main.clone(for_test=True)
    static.optimizer.SGD(1.0).minimize(static.nn.mean(item_only))

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
exe = static.Executor()
exe.run(startup)
fleet.init_worker()

USER, ITEM = np.eye(2, dtype="float32"), np.eye(3, dtype="float32")

def show(when):
    users, items = exe.run(both_test, feed={"user": USER[[0, 1, 1]], "item": ITEM}, fetch_list=[user, item])
    (alone,) = exe.run(item_test, feed={"item": ITEM}, fetch_list=[item_only])
    numbers = [[round(float(value), 3) for value in values[:, 0]] for values in (users, items, alone)]
    print(when, numbers, flush=True)

show("first")
# The mean of two outputs: each weight moves by half of its input.
exe.run(main, feed={"user": [[1.0, 0.0]], "item": [[0.0, 1.0, 0.0]]})
show("both")
# The item tower alone: its weight moves by its input.
for _ in range(2):
    exe.run(item_main, feed={"item": [[0.0, 0.0, 4.0]]})
show("item")
exe.run(main, feed={"user": [[0.0, 2.0]], "item": [[2.0, 0.0, 0.0]]})
show("both")
fleet.stop_worker()
"""

EXPECTED = """first [[1.0, 1.0, 1.0], [10.0, 10.0, 10.0], [10.0, 10.0, 10.0]]
both [[0.5, 1.0, 1.0], [10.0, 9.5, 10.0], [10.0, 9.5, 10.0]]
item [[0.5, 1.0, 1.0], [10.0, 9.5, 2.0], [10.0, 9.5, 2.0]]
both [[0.5, 0.0, 0.0], [9.0, 9.5, 2.0], [9.0, 9.5, 2.0]]"""

MODES = {
    "sync": {"a_sync": False},
    "half_async": {"half_async": True},
    "async": {"a_sync": True},
    "merging": {"a_sync": True, "a_sync_configs": {"max_merge_var_num": 4, "independent_recv_thread": False}},
    "hybrid": {"staleness": 2},
    "geo": {"a_sync": True, "a_sync_configs": {"k_steps": 1}},
}


@pytest.mark.parametrize("mode", MODES)
def test_every_program_reads_and_trains_its_own_parameters(tmp_path, mode):
    path = tmp_path / "towers.py"
    path.write_text(f"STRATEGY = {MODES[mode]!r}\n{TOWERS}")
    command = [sys.executable, "-m", "openfleet.launch", "--server_num=2", "--worker_num=1", str(path)]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = [line.removeprefix("[worker 0] ") for line in ran.stdout.splitlines()]
    assert [line for line in told if line.split()[0] in ("first", "both", "item")] == EXPECTED.splitlines()
