"""`fluid.layers` of PaddlePaddle 1.x: values that are worked out by hand."""

import numpy as np
import pytest

import openfleet.compat.paddle as paddle

layers = paddle.fluid.layers
ROWS = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], "float32")

VALUES = {
    "argmax": (lambda x: layers.argmax(x, axis=1), [2, 1]),
    "argmin": (lambda x: layers.argmin(x, axis=1), [1, 2]),
    "argsort": (lambda x: layers.argsort(x)[1], [[1, 0, 2], [2, 0, 1]]),
    "argsort values": (lambda x: layers.argsort(x, descending=True)[0], [[3, 1, -2], [4, 0.5, -1]]),
    "cumsum": (lambda x: layers.cumsum(x), [[1, -1, 2], [0.5, 4.5, 3.5]]),
    "elementwise_pow": (lambda x: layers.elementwise_pow(x, 2.0), ROWS**2),
    "elu": (lambda x: layers.elu(x), np.where(ROWS > 0, ROWS, np.exp(ROWS) - 1)),
    "fill_constant_batch_size_like": (
        lambda x: layers.fill_constant_batch_size_like(x, [-1, 2], "float32", 7.0),
        [[7, 7], [7, 7]],
    ),
    "flatten": (lambda x: layers.flatten(layers.unsqueeze(x, [1])), ROWS),
    "floor": (lambda x: layers.ops.floor(x), np.floor(ROWS)),
    "hard_sigmoid": (lambda x: layers.hard_sigmoid(x), np.clip(0.2 * ROWS + 0.5, 0, 1)),
    "increment": (lambda x: layers.increment(x, 2.0, in_place=False), ROWS + 2),
    "label_smooth": (lambda x: layers.label_smooth(x, epsilon=0.3), 0.7 * ROWS + 0.1),
    "range": (lambda x: layers.range(0, 6, 2, "int64"), [0, 2, 4]),
    "reduce_all": (lambda x: layers.reduce_all(layers.greater_than(x, x - 1.0)), True),
    "reduce_any": (lambda x: layers.reduce_any(layers.greater_than(x, x + 1.0)), False),
    "reduce_prod": (lambda x: layers.reduce_prod(x, dim=1), [-6, -2]),
    "relu6": (lambda x: layers.relu6(x, threshold=2.0), np.clip(ROWS, 0, 2)),
    "smooth_l1": (lambda x: layers.smooth_l1(x, x + 0.5), [[0.375], [0.375]]),
    "softplus": (lambda x: layers.softplus(x), np.log1p(np.exp(ROWS))),
    "softsign": (lambda x: layers.softsign(x), ROWS / (1 + np.abs(ROWS))),
    "swish": (lambda x: layers.swish(x, beta=2.0), ROWS / (1 + np.exp(-2 * ROWS))),
    "unstack": (lambda x: layers.unstack(x, axis=1)[2], [3, -1]),
    "where": (lambda x: layers.where(x > 0.5), [[0, 0], [0, 2], [1, 1]]),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_layer_gives_the_value_of_its_formula(name):
    build, wanted = VALUES[name]
    y = build(paddle.static.data("x", [None, 3]))
    (got,) = paddle.static.Executor().run(feed={"x": ROWS}, fetch_list=[y])
    np.testing.assert_allclose(got.reshape(np.shape(wanted)), wanted, rtol=1e-5, atol=1e-6)


def test_convolutions_and_pools_of_planes():
    x = paddle.static.data("x", [None, 1, 2, 2])
    ones = paddle.fluid.initializer.Constant(1.0)
    convolved = layers.conv2d(x, 2, 2, param_attr=ones, bias_attr=False, act="relu")
    pooled = [layers.pool2d(x, 2, kind) for kind in ("max", "avg")]
    whole = [layers.pool2d(x, pool_type=kind, global_pooling=True) for kind in ("max", "avg")]
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    values = exe.run(feed={"x": [[[[1.0, 2.0], [3.0, 6.0]]]]}, fetch_list=[convolved, *pooled, *whole])
    assert [value.reshape(-1).tolist() for value in values] == [[12.0, 12.0], [6.0], [3.0], [6.0], [3.0]]
    with pytest.raises(ValueError, match="`max` or `avg`"):
        layers.pool2d(x, 2, "median")


def test_slots_are_summed_and_their_counts_become_features():
    slot = paddle.static.data("slot", [None, 1], "int64", lod_level=1)
    counts = paddle.static.data("counts", [None, 2])
    rows = layers.embedding(slot, [10, 4], is_sparse=True, param_attr=paddle.fluid.initializer.Constant(1.0))
    (fused,) = paddle.incubate.layers.fused_seqpool_cvm([rows], "sum", counts)
    apart = layers.continuous_value_model(layers.sequence_pool(rows, "sum"), counts)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    feed = {"slot": [[1, 2], [3]], "counts": [[3.0, 1.0], [1.0, 0.0]]}
    values = exe.run(feed=feed, fetch_list=[fused, apart])
    np.testing.assert_array_equal(values[0], values[1])
    with pytest.raises(NotImplementedError, match="another `pool_type`"):
        paddle.incubate.layers.fused_seqpool_cvm([rows], "max", counts)


def test_schedules_by_their_names_of_paddlepaddle_1():
    for schedule, word in (
        (layers.polynomial_decay(0.1, 100), "polynomial"),
        (layers.linear_lr_warmup(0.1, 10, 0.0, 0.1), "warmup"),
        (layers.learning_rate_scheduler.noam_decay(64, 10), "noam"),
    ):
        assert list(schedule.to_json()) == [word]
