"""A model of `paddle.nn` with admission rules, in a job of real processes with the `fleet` of PaddlePaddle 2.x."""

import json
import re
import subprocess
import sys

import numpy as np

import openfleet

SCRIPT = """
import json
import numpy as np
import paddle
import paddle.distributed.fleet as fleet
import paddle.distributed.fleet.base.role_maker as role_maker
import paddle.nn.functional as F

paddle.enable_static()
fleet.init(role_maker.PaddleCloudRoleMaker())


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = paddle.nn.Embedding(100, 8, sparse=True, weight_attr=paddle.ParamAttr(name="rows"))
        self.tower = paddle.nn.Sequential(paddle.nn.Linear(24, 16), paddle.nn.ReLU(), paddle.nn.Linear(16, 1))

    def forward(self, fields, rare):
        rows = self.embedding(paddle.concat(fields, axis=1))
        count = paddle.distributed.CountFilterEntry(1000)
        wide = paddle.static.nn.sparse_embedding(
            rare, size=[-1, 1], entry=count, param_attr=paddle.ParamAttr(name="wide")
        )
        return F.sigmoid(self.tower(paddle.flatten(rows, 1)) + paddle.reshape(wide, [-1, 1])), wide


fields = [paddle.static.data(f"C{i}", [None, 1], "int64") for i in range(3)]
rare, label = paddle.static.data("rare", [None, 1], "int64"), paddle.static.data("label", [None, 1], "int64")
net = Net()
predict, wide = net(fields, rare)
loss = paddle.mean(F.log_loss(predict, paddle.cast(label, "float32")))
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
optimizer = paddle.optimizer.Adam(learning_rate=0.02, parameters=[*net.parameters(), "wide"])
fleet.distributed_optimizer(optimizer, strategy).minimize(loss)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    rank, size = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
    rng = np.random.default_rng(rank)
    for step in range(60):
        ids = rng.integers(0, 100, (3, 32, 1))
        feed = {f"C{i}": ids[i] for i in range(3)}
        feed.update(rare=ids[2], label=ids[0] % 2)
        value, seen = exe.run(fleet.main_program, feed=feed, fetch_list=[loss, wide])
        print("worker %d of %d: loss %f, rare %f" % (rank, size, value, np.abs(seen).max()), flush=True)
        if step % 20 == 19:
            # Modes of PaddlePaddle 2.x: everything, the changes, everything and the end of a day.
            fleet.barrier_worker()
            fleet.save_persistables(exe, "model", fleet.main_program, mode={19: 0, 39: 1, 59: 3}[step])
            if rank == 0 and step == 39:
                manifest = json.load(open("model/manifest.json"))
                assert [layer["step"] for layer in manifest["layers"]] == [20], manifest
            fleet.barrier_worker()
    fleet.save_one_table(0, "rows")
    fleet.save_inference_model(exe, "served", [f"C{i}" for i in range(3)] + ["rare"], [predict])
    if rank == 0:
        test = fleet.main_program.clone(for_test=True)
        np.save("expected.npy", exe.run(test, feed=feed, fetch_list=[predict])[0])
        np.savez("feed.npz", **feed)
    fleet.stop_worker()
"""


def test_layers_and_admission_rules_train_on_servers(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "openfleet.launch", "--server_num=2", "--worker_num=2", "--compat", "train.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    said = run.stdout + run.stderr
    assert run.returncode == 0, said
    for rank in range(2):
        steps = re.findall(rf"worker {rank} of 2: loss (-?[\d.]+), rare ([\d.]+)", said)
        losses = [float(loss) for loss, _ in steps]
        assert len(losses) == 60 and sum(losses[-5:]) < 0.6 * sum(losses[:5]), said
        # No id was seen a thousand times, so none has a row and all read as zeros.
        assert all(float(rare) == 0 for _, rare in steps)
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert manifest["step"] == 60 and "layers" not in manifest
    one = json.loads((tmp_path / "rows" / "manifest.json").read_text())
    assert ([table["name"] for table in one["sparse"]], one["dense"]) == (["rows"], [])
    # A model written by two servers predicts in one process.
    feed = {name: ids for name, ids in np.load(tmp_path / "feed.npz").items() if name != "label"}
    (got,) = openfleet.Predictor(tmp_path / "served").predict(feed)
    np.testing.assert_array_equal(got, np.load(tmp_path / "expected.npy"))
