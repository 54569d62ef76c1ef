"""Optimizers: PaddlePaddle's numbers, sparse rows with and without `lazy_mode`, saving and loading, exceptions.

The numbers were made by crates/table/tests/golden/paddle_optimizers.py.
"""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openfleet.compat.paddle as paddle
from openfleet import static

GOLDEN = Path(__file__).parents[2] / "crates" / "table" / "tests" / "golden" / "paddle_optimizers.json"
PADDLE = json.loads(GOLDEN.read_text())
SIZE = len(PADDLE["weights"])


def value(name: str) -> np.ndarray[Any, Any]:
    variable = static.global_scope().find_var(name)
    assert variable is not None
    return np.array(variable.get_tensor())


def started() -> static.Executor:
    exe = static.Executor()
    exe.run(static.default_startup_program())
    return exe


def weighted(name: str = "w", size: int = SIZE) -> static.Variable:
    """A loss whose gradient by a parameter is fed."""
    weights = static.nn.create_parameter([size], "float32", attr=static.ParamAttr(name=name))
    return static.nn.sum(static.nn.multiply(static.data("gradient", [None, size]), weights))


OPTIMIZERS = paddle.optimizer
FLUID = paddle.fluid.optimizer
DENSE = [
    lambda rate: OPTIMIZERS.Adam(rate),
    lambda rate: OPTIMIZERS.AdamW(rate),
    lambda rate: OPTIMIZERS.AdamW(rate, beta1=0.8, beta2=0.9, epsilon=0.01, weight_decay=0.3),
    lambda rate: OPTIMIZERS.AdamW(rate, weight_decay=0.3, apply_decay_param_fun=lambda name: name != "w"),
    lambda rate: OPTIMIZERS.Adamax(rate),
    lambda rate: FLUID.AdamaxOptimizer(rate, beta1=0.5, beta2=0.6, epsilon=0.01),
    lambda rate: OPTIMIZERS.Adadelta(rate),
    lambda rate: FLUID.AdadeltaOptimizer(rate, epsilon=0.01, rho=0.8),
    lambda rate: FLUID.DecayedAdagradOptimizer(rate),
    lambda rate: FLUID.DecayedAdagrad(rate, decay=0.5, epsilon=0.01),
    lambda rate: OPTIMIZERS.Lamb(rate),
    lambda rate: FLUID.LambOptimizer(rate, 0.3, beta1=0.5, beta2=0.9, epsilon=0.01),
    lambda rate: OPTIMIZERS.Lamb(rate, exclude_from_weight_decay_fn=lambda parameter: parameter.name == "w"),
    lambda rate: OPTIMIZERS.Lamb(rate, lamb_weight_decay=0.0, always_adapt=True),
]


@pytest.mark.parametrize("number", range(len(DENSE)))
def test_twelve_steps_on_a_dense_parameter_are_those_of_paddlepaddle(number: int) -> None:
    case = PADDLE["dense"][number]
    DENSE[number](case["rate"]).minimize(weighted())
    exe = started()
    static.global_scope().var("w").get_tensor().set(np.array(PADDLE["weights"], "float32"))
    for gradient, expected in zip(PADDLE["gradients"], case["steps"]):
        exe.run(feed={"gradient": np.array([gradient], "float32")})
        np.testing.assert_allclose(value("w"), expected, rtol=5e-5, atol=5e-6)


def rows_after(
    is_sparse: bool,
    batches: list[Any],
    bounded: bool = True,
    computed: bool = False,
    rule: Any = paddle.optimizer.Adam,
    regularizer: Any = None,
    **settings: Any,
) -> np.ndarray[Any, Any]:
    """The rows of an embedding after some steps of a rule at the rate 0.1."""
    with static.program_guard(static.Program(), static.Program()), static.scope_guard(static.Scope()):
        ids = paddle.static.data("ids", [None, 1], "int64")
        gradient = paddle.static.data("gradient", [None, 1, 2])
        initializer = paddle.nn.initializer.Constant(0.5)
        attr = paddle.ParamAttr(name="rows", initializer=initializer, regularizer=regularizer)
        nn = paddle.static.nn
        look_up = functools.partial(nn.embedding, is_sparse=is_sparse) if bounded else nn.sparse_embedding
        # `sparse_embedding` replaces the last dimension of the ids, `embedding` adds one.
        rows = paddle.reshape(look_up(ids * 1 if computed else ids, [5, 2], param_attr=attr), [-1, 1, 2])
        test = static.default_main_program().clone(for_test=True)
        rule(0.1, **settings).minimize(paddle.sum(paddle.multiply(rows, gradient)))
        exe = started()
        for keys, gradients in batches:
            feed = {"ids": np.array(keys)[:, None], "gradient": np.array(gradients, "float32")[:, None, :]}
            exe.run(static.default_main_program(), feed=feed)
        feed = {"ids": np.arange(5)[:, None], "gradient": np.zeros((5, 1, 2), "float32")}
        return exe.run(test, feed=feed, fetch_list=[rows])[0].reshape(5, 2)


@pytest.mark.parametrize("number", range(len(PADDLE["tables"])))
def test_adam_of_a_script_moves_rows_as_paddlepaddle_does(number: int) -> None:
    table = PADDLE["tables"][number]
    for count, expected in enumerate(table["steps"], start=1):
        got = rows_after(table["is_sparse"], PADDLE["batches"][:count], lazy_mode=table["lazy_mode"])
        np.testing.assert_allclose(got, expected, rtol=5e-5, err_msg=f"after step {count}")


@pytest.mark.parametrize("rule", [paddle.optimizer.Adam, FLUID.AdamOptimizer])
def test_adam_of_a_script_moves_a_table_of_computed_ids_as_paddlepaddle_does(rule: Any) -> None:
    """It is a dense parameter here; in PaddlePaddle it is a sparse table, whose bias correction is one step ahead."""
    table = next(table for table in PADDLE["tables"] if table["is_sparse"] and not table["lazy_mode"])
    for count, expected in enumerate(table["steps"], start=1):
        got = rows_after(True, PADDLE["batches"][:count], computed=True, rule=rule, lazy_mode=False)
        np.testing.assert_allclose(got, expected, rtol=5e-5, err_msg=f"after step {count}")


def test_a_table_of_computed_ids_with_a_regularizer_moves_as_a_dense_embedding() -> None:
    """Its gradient is dense in PaddlePaddle too."""
    decay, batches = paddle.regularizer.L2Decay(0.1), PADDLE["batches"]
    for settings in ({"regularizer": decay}, {"weight_decay": decay}):
        computed = rows_after(True, batches, computed=True, **settings)
        np.testing.assert_array_equal(computed, rows_after(False, batches, **settings))
    assert np.abs(rows_after(True, batches, computed=True) - rows_after(False, batches)).max() > 1e-3


def test_adam_without_lazy_mode_moves_sparse_rows_as_it_moves_a_dense_embedding() -> None:
    dense = next(table for table in PADDLE["tables"] if not table["is_sparse"])
    for count, expected in enumerate(dense["steps"], start=1):
        got = rows_after(True, PADDLE["batches"][:count], rule=static.optimizer.Adam, lazy_mode=False)
        np.testing.assert_allclose(got, expected, rtol=5e-5, err_msg=f"after step {count}")


def test_with_lazy_mode_only_rows_of_a_batch_move() -> None:
    batches = PADDLE["batches"]
    before, after = rows_after(True, batches[:1], lazy_mode=True), rows_after(True, batches[:2], lazy_mode=True)
    touched = sorted(batches[1][0])
    rest = [row for row in range(5) if row not in touched]
    assert (after[rest] == before[rest]).all() and (after[touched] != before[touched]).all()


@pytest.mark.parametrize("lazy_mode", [False, True])
def test_the_first_step_of_adam_on_a_row_is_the_rate_as_in_paddlepaddles_dense_kernel(lazy_mode: bool) -> None:
    """PaddlePaddle's kernel for sparse gradients corrects the bias as in step 2, and moves the row by 0.0744.

    So does `paddle.optimizer.Adam`; `static.optimizer.Adam` treats rows and dense parameters alike.
    """
    moved = {table["is_sparse"]: 0.5 - table["steps"][0][1][0] for table in PADDLE["tables"]}
    assert moved[False] == pytest.approx(0.1) and moved[True] == pytest.approx(0.074413, abs=1e-6)
    rows = rows_after(True, PADDLE["batches"][:1], rule=static.optimizer.Adam, lazy_mode=lazy_mode)
    assert rows[1] == pytest.approx([0.4, 0.6])
    rows = rows_after(True, PADDLE["batches"][:1], lazy_mode=lazy_mode)
    assert rows[1] == pytest.approx([0.5 - 0.074413, 0.5 + 0.074413], abs=1e-6)


def test_a_table_without_a_bound_stays_lazy_and_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    batches = PADDLE["batches"]
    with caplog.at_level(logging.WARNING, logger="openfleet"):
        got = rows_after(True, batches, bounded=False)
        # Log events arrive from another thread.
        deadline = time.monotonic() + 10
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
    assert (got == rows_after(True, batches, rule=static.optimizer.Adam, lazy_mode=True)).all()
    said = "rows that are not in a batch do not move, as with `lazy_mode`, in the tables `rows`"
    why = "they have no bound on their ids, or rows that are counted or evicted"
    assert [record.getMessage() for record in caplog.records].count(f"{said}: {why}") == 1


NEW = {
    "Adadelta": {"learning_rate": 1.0},
    "AdamW": {},
    "Adamax": {},
    "DecayedAdagrad": {"learning_rate": 0.01},
    "Lamb": {},
    "Adam": {"lazy_mode": False},
}


@pytest.mark.parametrize("name", NEW)
def test_training_resumes_from_a_checkpoint_with_the_optimizer_state(
    name: str, tmp_path: Path, click_model: Any
) -> None:
    settings = {"learning_rate": 0.05, **NEW[name]}

    def batch(step: int) -> dict[str, Any]:
        user, item = [[step % 7], [3]], [[step % 5, 20 + step % 3], [9]]
        return {"label": [[1], [step % 2]], "dense": [[0.1, 0.2], [step / 9, 0.3]], "user": user, "item": item}

    def run(exe: static.Executor, model: Any, steps: range) -> list[float]:
        return [exe.run(feed=batch(step), fetch_list=[model.loss])[0].item() for step in steps]

    model = click_model(getattr(static.optimizer, name)(**settings))
    exe = started()
    losses = run(exe, model, range(6))
    assert np.isfinite(losses).all()
    static.save(static.default_main_program(), tmp_path / "saved")
    expected = run(exe, model, range(6, 12))
    with static.scope_guard(static.Scope()):
        again = started()
        static.load(static.default_main_program(), tmp_path / "saved")
        assert run(again, model, range(6, 12)) == expected
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())
    assert manifest["version"] == 3, "earlier releases have no word for it"


def test_exceptions_are_chosen_by_functions_over_parameters() -> None:
    rates = {"a": 1.0, "b": 3.0}
    total = static.nn.add(weighted("a", 2), static.nn.sum(static.nn.create_parameter([2], "float32", attr="b")))
    rule = static.optimizer.AdamW(
        0.1, weight_decay=0.5, lr_ratio=lambda p: rates[p.name], apply_decay_param_fun=lambda name: name == "b"
    )
    rule.minimize(total)
    exe = started()
    for name in "ab":
        static.global_scope().var(name).get_tensor().set(np.array([1.0, 2.0], "float32"))
    exe.run(feed={"gradient": np.array([[2.0, -3.0]], "float32")})
    # Adam's first step is the rate.
    np.testing.assert_allclose(value("a"), [0.9, 2.1], rtol=1e-5)
    np.testing.assert_allclose(value("b"), [1.0 * (1 - 0.15) - 0.3, 2.0 * (1 - 0.15) - 0.3], rtol=1e-5)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(TypeError, match="`weight_decay` of AdamW expects a float, got L2Decay"):
        static.optimizer.AdamW(0.1, weight_decay=static.regularizer.L2Decay(0.1))  # type: ignore[arg-type]
    loss = weighted()
    with pytest.raises(ValueError, match="`beta1` of lamb must be in"):
        static.optimizer.Lamb(0.1, beta1=1.0).minimize(loss)
    with pytest.raises(ValueError, match="`rho` of adadelta must be in"):
        static.optimizer.Adadelta(0.1, rho=2.0).minimize(loss)
    with pytest.raises(NotImplementedError, match="`rescale_grad=0.5` of Momentum"):
        paddle.optimizer.Momentum(0.1, rescale_grad=0.5)


def test_arguments_without_effect_are_accepted() -> None:
    paddle.optimizer.Adam(0.1, multi_precision=True, use_multi_tensor=True, name="a")
    paddle.optimizer.AdamW(0.1, lazy_mode=True, multi_precision=True, name="b")
    paddle.optimizer.Lamb(0.1, multi_precision=True, name="c")
    paddle.optimizer.Momentum(0.1, multi_precision=True, use_multi_tensor=True)


def test_lamb_says_that_rows_have_norms_of_their_own() -> None:
    ids = paddle.static.data("ids", [None, 1], "int64")
    rows = paddle.static.nn.embedding(ids, [5, 2], is_sparse=True, param_attr=paddle.ParamAttr(name="rows"))
    with pytest.warns(UserWarning, match="norm of each row of a sparse table, not of the whole table: `rows`"):
        paddle.optimizer.Lamb(0.1).minimize(paddle.mean(rows))


def rates(schedule: Any, steps: int) -> list[float]:
    """The rates of some steps, as a weight that moves by each of them shows."""
    attr = static.ParamAttr(name="w", initializer=static.initializer.Constant(0.0))
    weight = static.nn.create_parameter([1], "float32", attr=attr)
    loss = static.nn.sum(weight)
    static.optimizer.SGD(schedule).minimize(loss)
    exe = started()
    places = [-float(exe.run(feed={}, fetch_list=[loss])[0].item()) for _ in range(steps + 1)]
    return [float(rate) for rate in np.diff(places)]


def test_noam_decay_counts_from_one_in_fluid_and_from_zero_in_paddlepaddle_2() -> None:
    # 4 ^ -0.5 * min(n ^ -0.5, n * 3 ^ -1.5)
    expected = [0.09622504, 0.19245009, 0.28867513, 0.25]
    assert rates(paddle.fluid.layers.noam_decay(4, 3), 4) == pytest.approx(expected, rel=1e-5)
    with static.program_guard(static.Program(), static.Program()), static.scope_guard(static.Scope()):
        assert rates(paddle.optimizer.lr.NoamDecay(4, 3), 5) == pytest.approx([0.0, *expected], rel=1e-5)


JOB = """
import sys
import numpy as np
import paddle
from paddle.distributed import fleet

paddle.enable_static()
name = sys.argv[1]
fleet.init()
ids = paddle.static.data("ids", [None, 1], "int64", lod_level=1)
x, label = paddle.static.data("x", [None, 4]), paddle.static.data("label", [None, 1])
rows = paddle.static.nn.embedding(ids, [50, 3], is_sparse=True, param_attr=paddle.ParamAttr(name="rows"), pooling="sum")
hidden = paddle.static.nn.fc(paddle.concat([rows, x], 1), 4096, activation="relu")
y = paddle.static.nn.fc(hidden, 1, weight_attr=paddle.ParamAttr(name="out"))
loss = paddle.mean(paddle.nn.functional.square_error_cost(y, label))
settings = {"apply_decay_param_fun": lambda name: name != "out"} if name == "AdamW" else {}
rule = getattr(paddle.optimizer, name)(0.01, **settings)
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
fleet.distributed_optimizer(rule, strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
exe = paddle.static.Executor()
exe.run(paddle.static.default_startup_program())
fleet.init_worker()
rank, count = fleet.worker_index(), fleet.worker_num()
for step in range(20):
    chance = np.random.RandomState(step)
    batch = {"ids": chance.randint(0, 50, (4, 2)), "x": chance.rand(4, 4), "label": chance.rand(4, 1)}
    feed = {name: values[rank::count].astype("float32") for name, values in batch.items()}
    feed["ids"] = batch["ids"][rank::count].tolist()
    exe.run(feed=feed)
scope = paddle.static.global_scope()
fleet.barrier_worker()
probe = {"ids": [[key] for key in range(50)], "x": np.zeros((50, 4), "f4"), "label": np.zeros((50, 1), "f4")}
test = paddle.static.default_main_program().clone(for_test=True)
np.save(f"{name}-{count}-{rank}.npy", exe.run(test, feed=probe, fetch_list=[y])[0])
fleet.stop_worker()
"""


@pytest.mark.parametrize("name", ["Lamb", "AdamW", "Adam"])
def test_two_workers_and_two_servers_in_sync_equal_one_process(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    alone = [sys.executable, "-m", "openfleet.compat", "job.py", name]
    job = [sys.executable, "-m", "openfleet.launch", "--compat", "--server_num=2", "--worker_num=2", "job.py", name]
    runs = [subprocess.run(each, cwd=tmp_path, capture_output=True, text=True, timeout=120) for each in (alone, job)]
    said = "".join(run.stdout + run.stderr for run in runs)
    assert [run.returncode for run in runs] == [0, 0], said
    one, first, second = (np.load(tmp_path / f"{name}-{rank}.npy") for rank in ("1-0", "2-0", "2-1"))
    assert (first == second).all()
    difference = np.linalg.norm(first - one) / np.linalg.norm(one)
    rests = "rows that are not in a batch do not move, as with `lazy_mode`, in the tables `rows`: they are on servers"
    if name == "Adam":
        # Servers update the rows they are sent, as PaddlePaddle's servers do, and every worker says so once.
        assert difference > 1e-3 and said.count(rests) == 2, said
    else:
        assert difference < 1e-5 and rests not in said, difference
