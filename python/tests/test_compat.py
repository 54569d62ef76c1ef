import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SEEDS = Path(__file__).parents[2] / "tests" / "seeds"


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_seed_001_prints_costs_that_fall_and_an_auc_that_rises():
    endpoints = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    command = [sys.executable, "-u", "-m", "openfleet.compat", str(SEEDS / "001_fleet_api.py")]
    processes = [
        subprocess.Popen(
            [*command, role, str(rank), endpoints], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for role in ("worker", "server")
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * 4, outputs
    for out, _ in outputs[:2]:
        passes = re.findall(r"Pass (\d+), cost = ([\d.]+), auc = ([\d.]+), batch_auc = ([\d.]+)", out)
        assert len(passes) == 10
        assert float(passes[-1][1]) < 0.7 * float(passes[0][1])
        assert float(passes[-1][2]) > 0.8


def test_seed_004_trains_with_geo_under_fleetrun(tmp_path):
    command = [sys.executable, "-m", "openfleet.launch", "--compat", "--server_num=2", "--worker_num=2"]
    run = subprocess.run(
        [*command, str(SEEDS / "004_geo.py"), str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    said = run.stdout + run.stderr
    assert run.returncode == 0, said
    assert "push differences every 400 batches" in said
    costs = [float(cost) for cost in re.findall(r"\[worker 0\].*epoch \d cost ([\d.]+)", said)]
    assert len(costs) == 6, said
    aucs = [float(auc) for auc in re.findall(r"auc ([\d.]+)", said)]
    assert len(aucs) == 2 and min(aucs) > 0.7, said


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import paddle.fluid as fluid; fluid.layers.conv2d", "`paddle.fluid.layers.conv2d` is not available"),
        ("import paddle; paddle.concta", "did you mean `concat`"),
        ("import paddle.vision", "`paddle.vision` is not part of"),
        (
            "from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig as C; C().sync = 1",
            "has no `sync`",
        ),
    ],
)
def test_what_is_absent_is_named_with_the_nearest_thing(tmp_path, code, message):
    (tmp_path / "script.py").write_text(code)
    command = [sys.executable, "-m", "openfleet.compat", str(tmp_path / "script.py")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert "NotImplementedError" in run.stderr and message in run.stderr
