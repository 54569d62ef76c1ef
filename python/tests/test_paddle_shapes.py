"""A recurrent model over lengths that only each batch knows, on servers: a feed loop and a dataset, real processes."""

import re
import subprocess
import sys

import numpy as np
import pytest

import openfleet.compat.paddle as paddle

SCRIPT = """
import os
import numpy as np
import paddle
import paddle.distributed.fleet as fleet

paddle.enable_static()
ids = paddle.static.data("ids", [-1, -1], "int64")
label = paddle.static.data("label", [-1, 1], "float32")
rows = paddle.static.nn.embedding(ids, [1000, 8], is_sparse=True, param_attr=paddle.ParamAttr(name="rows"))
states, _ = paddle.nn.GRU(8, 8)(rows)
logit = paddle.nn.Linear(8, 1)(states[:, -1, :])
loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(logit, label))
fleet.init(is_collective=False)
strategy = fleet.DistributedStrategy()
strategy.a_sync = os.environ["MODE"] != "sync"
fleet.distributed_optimizer(paddle.optimizer.Adam(0.02), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    draw = np.random.RandomState(fleet.worker_index())
    losses = []
    for step in range(120):
        values = draw.randint(0, 50, (32, 2 + step % 4))
        feed = {"ids": values, "label": (values[:, -1:] % 2).astype("float32")}
        losses.append(exe.run(feed=feed, fetch_list=[loss])[0].item())
    print("losses %.4f %.4f" % (np.mean(losses[:10]), np.mean(losses[-10:])), flush=True)
    name = f"rows-{fleet.worker_index()}.txt"
    with open(name, "w") as file:
        for values in draw.randint(0, 50, (256, 3)):
            file.write(f"3 {values[0]} {values[1]} {values[2]} 1 {values[2] % 2}\\n")
    dataset = paddle.distributed.QueueDataset()
    dataset.init(batch_size=32, thread_num=1, use_var=[ids, label])
    dataset.set_filelist([name])
    exe.train_from_dataset(paddle.static.default_main_program(), dataset, fetch_list=[loss], print_period=8)
    fleet.stop_worker()
"""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_servers_train_a_model_over_lengths_that_only_a_batch_knows(mode, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("MODE", mode)
    command = [sys.executable, "-m", "openfleet.launch", "--compat", "--server_num=2", "--worker_num=2", "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    losses = [tuple(map(float, found)) for found in re.findall(r"losses ([\d.]+) ([\d.]+)", said)]
    assert len(losses) == 2 and all(last < 0.2 * first for first, last in losses), said
    assert len(re.findall(r"\[worker \d\] batch 8: ", said)) == 2, said


def test_data_may_have_another_number_of_dimensions_than_declared():
    """PaddlePaddle computes with what it is fed."""
    ids = paddle.static.data("ids", [-1, 5, 5], "int64")
    x = paddle.static.data("x", [-1, 4], "float32")
    rows = paddle.static.nn.embedding(ids[0], [10, 4], param_attr=paddle.ParamAttr(name="rows"))
    scores = paddle.matmul(rows, paddle.unsqueeze(x, -1)[0])
    program = paddle.static.default_main_program()
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    table = np.array(paddle.static.global_scope().find_var("rows").get_tensor())
    vector = np.array([[1.0, 2.0, 3.0, 4.0]], "float32")
    for shape in [(1, 5), (1, 5, 5), (1, 3)]:
        fed = np.arange(np.prod(shape)).reshape(shape) % 10
        if len(shape) == 3:
            fed = fed.astype("int64")
        (got,) = exe.run(program, feed={"ids": fed, "x": vector}, fetch_list=[scores])
        np.testing.assert_allclose(got, table[fed[0]] @ vector[0][:, None], rtol=1e-5)
    with pytest.raises(ValueError, match=r"feed `x`: expected an array of shape \[-1, 4\]"):
        exe.run(program, feed={"ids": fed, "x": vector[:, :3]}, fetch_list=[scores])
