"""Jobs of real processes that train, evaluate with `DistributedInfer`, and count with `fleet.metrics`."""

import re
import subprocess
import sys

import numpy as np
import pytest

import openfleet.compat.paddle as paddle

MODEL = """
import sys
import numpy as np
import paddle
import paddle.distributed.fleet as fleet
from paddle.distributed.fleet.utils.ps_util import DistributedInfer
from paddle.incubate.distributed.fleet.fleet_util import FleetUtil

paddle.enable_static()


class Model:
    def __init__(self):
        self.x = paddle.static.data("x", [None, 4])
        self.label = paddle.static.data("label", [None, 1], "int64")
        self.ids = paddle.static.data("ids", [None, 1], "int64")
        feeds = [self.x, self.label, self.ids]
        self.loader = paddle.io.DataLoader.from_generator(feeds, capacity=8, iterable=False)
        rows = paddle.nn.Embedding(50, 4, sparse=True, weight_attr=paddle.ParamAttr(name="rows"))(self.ids)
        hidden = paddle.concat([self.x, paddle.reshape(rows, [-1, 4])], axis=1)
        self.predict = paddle.nn.functional.sigmoid(paddle.nn.Linear(8, 1)(hidden))
        label = paddle.cast(self.label, "float32")
        self.loss = paddle.mean(paddle.nn.functional.log_loss(self.predict, label))
        both = paddle.concat([1 - self.predict, self.predict], axis=1)
        with paddle.utils.unique_name.guard():
            self.rows = paddle.static.create_global_var([1], 0, "float32", persistable=True, name="row_count")
            right = paddle.static.create_global_var([1], 0, "float32", persistable=True, name="right_count")
            batch = paddle.sum(paddle.full([paddle.shape(label)[0], 1], 1.0))
            paddle.assign(self.rows + batch, self.rows)
            paddle.assign(right + batch * paddle.static.accuracy(both, self.label), right)
            self.right = right
            self.auc, _, self.counts = paddle.static.auc(both, self.label)


def batches(rank):
    rng = np.random.default_rng(rank)
    for _ in range(20):
        x = rng.normal(size=(16, 4)).astype("float32")
        yield x, (x[:, :1] > 0).astype("int64"), rng.integers(0, 50, (16, 1))


def passes(exe, program, loader, fetch):
    loader.start()
    values = []
    try:
        while True:
            values.append([float(value) for value in exe.run(program, fetch_list=fetch)])
    except paddle.common_ops_import.core.EOFException:
        loader.reset()
    return values
"""

TRAIN = """
from model import *

fleet.init()
model = Model()
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
fleet.distributed_optimizer(paddle.optimizer.SGD(0.5), strategy).minimize(model.loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    rank = fleet.worker_index()
    model.loader.set_batch_generator(lambda: batches(rank))
    for _ in range(3):
        passes(exe, None, model.loader, [model.loss])
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        test = Model()
    util = FleetUtil("transpiler")
    for variable in (*model.counts, model.rows, model.right):
        util.set_zero(variable.name)
    program = DistributedInfer(main, startup).get_dist_infer_program()
    test.loader.set_batch_generator(lambda: batches(rank + 10))
    first = passes(exe, program, test.loader, [test.loss])
    again = passes(exe, program, test.loader, [test.loss])
    assert first == again, "evaluation must not train"
    positive, negative = test.counts[2:]
    scope = paddle.static.global_scope()
    arrays = [np.array(scope.find_var(one.name).get_tensor()) for one in (positive, negative)]
    metrics = fleet.metrics
    found = {
        metrics.auc(positive, negative),
        metrics.auc(positive.name, negative.name, scope, fleet.util),
        metrics.auc(*arrays, scope=scope),
        util.get_global_auc(scope, positive.name, negative.name),
    }
    assert len(found) == 1, found
    assert metrics.sum(test.rows).tolist() == [2 * 2 * 20 * 16.0], metrics.sum(test.rows)
    assert metrics.max("row_count").tolist() == [640.0] and metrics.min(np.array([rank])).tolist() == [0]
    fleet.barrier_worker()
    print("loss %f auc %f acc %f" % (first[-1][0], found.pop(), metrics.acc(test.right, test.rows)), flush=True)
    util.print_global_auc(scope, positive.name, negative.name, "whole job:")
    fleet.save_persistables(exe, "saved")
    fleet.stop_worker()
"""

EVALUATE = """
from model import *

model = Model()
infer = DistributedInfer()
exe = paddle.static.Executor()
infer.init_distributed_infer_env(exe, model.loss, dirname="saved")
if fleet.is_worker():
    rank = fleet.worker_index()
    model.loader.set_batch_generator(lambda: batches(rank + 10))
    values = passes(exe, infer.get_dist_infer_program(), model.loader, [model.loss])
    infer.init_distributed_infer_env(exe, model.loss)
    print("evaluated %f" % values[-1][0], flush=True)
    fleet.stop_worker()
"""


def _run(tmp_path, script, *options):
    command = [sys.executable, "-m", "openfleet.launch", *options, "--compat", script]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_a_job_evaluates_with_the_rows_of_its_servers_and_counts_over_all_workers(tmp_path):
    for name, text in (("model", MODEL), ("train", TRAIN), ("evaluate", EVALUATE)):
        (tmp_path / f"{name}.py").write_text(text)
    said = _run(tmp_path, "train.py", "--server_num=1", "--worker_num=2")
    results = re.findall(r"loss ([\d.]+) auc ([\d.]+) acc ([\d.]+)", said)
    assert len(results) == 2 and len({result[1:] for result in results}) == 1, said
    assert float(results[0][1]) > 0.9 and float(results[0][2]) > 0.8, said
    assert said.count("whole job: global auc = ") == 1
    # A job of its own that only evaluates gets the same losses from the checkpoint.
    again = _run(tmp_path, "evaluate.py", "--server_num=1", "--worker_num=2")
    assert sorted(re.findall(r"evaluated ([\d.]+)", again)) == sorted(loss for loss, _, _ in results), again


class Doubling:
    """Adds up as if there were two workers with the same values."""

    def all_reduce(self, value, mode):
        return {"sum": 2 * value, "max": value + 1, "min": value - 1}[mode]


def test_a_metric_takes_what_adds_up_the_values_of_workers():
    metrics, util = paddle.distributed.fleet.metrics, Doubling()
    assert metrics.sum(np.array([[1.0, 2.0]]), util=util).tolist() == [[2.0, 4.0]]
    assert metrics.max(np.array([1]), None, util).tolist() == [2] and metrics.min(3, util=util).tolist() == 2
    assert metrics.acc(np.array([3.0]), np.array([4.0]), util=util) == 0.75
    assert (
        metrics.mae(1.0, 4, util=util) == metrics.mse(1.0, 4, util=util) == 0.25
        and metrics.rmse(1.0, 4, util=util) == 0.5
    )
    # Of 2 * 2 pairs of a positive and a negative row, two are in order, one is not, and one is within a bin.
    positive, negative = np.array([[0, 1, 1]]), np.array([[1, 0, 1]])
    assert metrics.auc(positive, negative, util=util) == (1 + 1 + 0 + 0.5) / 4
    assert metrics.auc(positive, 0 * negative, util=util) == 0.5


@pytest.mark.parametrize("method", ["save_paddle_params", "load_model"])
def test_a_method_that_a_job_has_not_is_named(method):
    util = paddle.incubate.distributed.fleet.fleet_util.FleetUtil()
    with pytest.raises(NotImplementedError, match=f"`FleetUtil.{method}` is not available\n\nhint: "):
        getattr(util, method)()
    with pytest.raises(ValueError, match="`pslib` or `transpiler`"):
        paddle.incubate.distributed.fleet.fleet_util.FleetUtil("collective")


class Zipped(paddle.distributed.fleet.MultiSlotDataGenerator):
    def generate_sample(self, line):
        return lambda: iter([zip(["label", "user"], [[1], [7, 8]])])


def test_a_row_of_a_generator_may_be_a_zip_of_names_and_values(capsys):
    Zipped().run_from_memory()
    assert capsys.readouterr().out == "1 1 2 7 8\n"
