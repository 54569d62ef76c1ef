"""Functions on variables: their results compared with NumPy, and their errors."""

import numpy as np
import pytest

import openfleet.compat.paddle as paddle
import openfleet.compat.paddle.fluid.layers as L
import openfleet.compat.paddle.nn.functional as F
from openfleet import static

X = np.array([[[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]], [[3.0, 1.0, -2.0], [0.0, 4.0, 1.0]]], np.float32)
Y = np.array([[[1.0, 2.0, -1.0], [0.5, 1.0, 3.0]], [[-3.0, 1.0, 2.0], [0.5, 2.0, 1.0]]], np.float32)
P = 1 / (1 + np.exp(-X))
Z = (Y > 1).astype(np.float32)
IDS = np.array([[2, 0], [1, 1]])


def run(build, **feed):
    """Returns what `build` computes from fed arrays, whose first dimension is the batch."""
    feed = {name: np.asarray(value) for name, value in feed.items()}
    feed.setdefault("rows", np.zeros((2, 1), np.float32))
    kinds = {name: "int64" if value.dtype.kind == "i" else "float32" for name, value in feed.items()}
    variables = {name: paddle.static.data(name, [None, *value.shape[1:]], kinds[name]) for name, value in feed.items()}
    variables.pop("rows")
    out = build(**variables)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    return exe.run(feed=feed, fetch_list=list(out) if isinstance(out, (list, tuple)) else [out])


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


BCE = -Z * np.log(P) - (1 - Z) * np.log(1 - P)

# A computation on x, y, p (probabilities), z (labels) and ids, and the result of NumPy.
TABLE = {
    "abs": (lambda x, **_: paddle.abs(x), np.abs(X)),
    "add": (lambda x, y, **_: paddle.add(x, y), X + Y),
    "add_n": (lambda x, y, **_: paddle.add_n([x, y, x]), X + Y + X),
    "arange": (lambda **_: paddle.arange(1, 7, 2), np.arange(1, 7, 2)),
    "arange of one": (lambda **_: paddle.arange(4), np.arange(4)),
    "arange floats": (lambda **_: paddle.arange(0.0, 1.0, 0.25), np.arange(0, 1, 0.25)),
    "argmax": (lambda x, **_: paddle.argmax(x, axis=-1), X.argmax(-1)),
    "argsort": (lambda x, **_: paddle.argsort(x, axis=-1), X.argsort(-1)),
    "bmm": (lambda x, y, **_: paddle.bmm(x, paddle.transpose(y, [0, 2, 1])), X @ Y.transpose(0, 2, 1)),
    "cast": (lambda x, **_: paddle.cast(x, "int64"), X.astype(int)),
    "clip": (lambda x, **_: paddle.clip(x, -0.5, 1.0), X.clip(-0.5, 1.0)),
    "concat": (lambda x, y, **_: paddle.concat([x, y], axis=-1), np.concatenate([X, Y], -1)),
    "divide": (lambda x, y, **_: paddle.divide(x, y), X / Y),
    "dot": (lambda x, y, **_: paddle.dot(x, y), (X * Y).sum(-1, keepdims=True)),
    "einsum bij,bkj->bik": (lambda x, y, **_: paddle.einsum("bij,bkj->bik", x, y), np.einsum("bij,bkj->bik", X, Y)),
    "einsum bij,bij->bi": (lambda x, y, **_: paddle.einsum("bij,bij->bi", x, y), np.einsum("bij,bij->bi", X, Y)),
    "einsum bij,bij->b": (lambda x, y, **_: paddle.einsum("bij,bij->b", x, y), np.einsum("bij,bij->b", X, Y)),
    "einsum bij->bji": (lambda x, **_: paddle.einsum("bij->bji", x), X.transpose(0, 2, 1)),
    "einsum bij->bj": (lambda x, **_: paddle.einsum("bij->bj", x), X.sum(1)),
    "einsum bim,bjn->bijmn": (
        lambda x, y, **_: paddle.einsum("bim,bjn->bijmn", x, y),
        np.einsum("bim,bjn->bijmn", X, Y),
    ),
    "einsum bij,bkn->bik": (lambda x, y, **_: paddle.einsum("bij,bkn->bik", x, y), np.einsum("bij,bkn->bik", X, Y)),
    "einsum implicit": (lambda x, y, **_: paddle.einsum("bij,bkj", x, y), np.einsum("bij,bkj", X, Y)),
    "equal": (lambda ids, **_: paddle.equal(ids, 1), IDS == 1),
    "exp": (lambda x, **_: paddle.exp(x), np.exp(X)),
    "flatten": (lambda x, **_: paddle.flatten(x), X.reshape(-1)),
    "flatten from 1": (lambda x, **_: paddle.flatten(x, 1), X.reshape(2, -1)),
    "flatten to 1": (lambda x, **_: paddle.flatten(x, 0, 1), X.reshape(-1, 3)),
    "full": (lambda **_: paddle.full([2, 3], 7.5), np.full((2, 3), 7.5)),
    "full of integers": (lambda **_: paddle.full([2], 7, "int64"), np.full(2, 7)),
    "full of truth": (lambda **_: paddle.full([2], True, "bool"), np.full(2, True)),
    "full of the batch": (lambda x, **_: paddle.full([paddle.shape(x)[0], 4], 1.0), np.ones((2, 4))),
    "full_like": (lambda x, **_: paddle.full_like(x, 3), np.full_like(X, 3)),
    "gather": (lambda x, **_: paddle.gather(x, paddle.to_tensor([1, 0, 1])), X[[1, 0, 1]]),
    "gather along an axis": (lambda x, **_: paddle.gather(x, paddle.to_tensor([2, 0]), axis=2), X[:, :, [2, 0]]),
    "greater_than": (lambda x, y, **_: paddle.greater_than(x, y), X > Y),
    "log": (lambda p, **_: paddle.log(p), np.log(P)),
    "masked_select sum": (lambda x, y, **_: paddle.sum(paddle.masked_select(x, y > 1.0)), [X[Y > 1].sum()]),
    "masked_select mean": (
        lambda x, y, **_: paddle.mean(paddle.square(paddle.masked_select(x, y > 1.0)) * 2.0 + 1.0),
        [(X[Y > 1] ** 2 * 2 + 1).mean()],
    ),
    "matmul": (lambda x, y, **_: paddle.matmul(x, y, transpose_y=True), X @ Y.transpose(0, 2, 1)),
    "max": (lambda x, **_: paddle.max(x, axis=1), X.max(1)),
    "mean": (lambda x, **_: paddle.mean(x), [X.mean()]),
    "mean along an axis": (lambda x, **_: paddle.mean(x, axis=[1, 2], keepdim=True), X.mean((1, 2), keepdims=True)),
    "min": (lambda x, **_: paddle.min(x, axis=-1), X.min(-1)),
    "multiply": (lambda x, y, **_: paddle.multiply(x, y), X * Y),
    "norm": (lambda x, **_: paddle.norm(x, axis=-1), np.linalg.norm(X, axis=-1)),
    "ones": (lambda **_: paddle.ones([2, 2]), np.ones((2, 2))),
    "ones_like": (lambda x, **_: paddle.ones_like(x), np.ones_like(X)),
    "pow": (lambda p, **_: paddle.pow(p, 3), P**3),
    "reshape": (lambda x, **_: paddle.reshape(x, [-1, 6]), X.reshape(-1, 6)),
    "reshape by its shape": (lambda x, **_: paddle.reshape(x, [paddle.shape(x)[0], 6]), X.reshape(-1, 6)),
    "rsqrt": (lambda p, **_: paddle.rsqrt(p), 1 / np.sqrt(P)),
    "scale": (lambda x, **_: paddle.scale(x, 2.0, 1.0), 2 * X + 1),
    "scale after": (lambda x, **_: paddle.scale(x, 2.0, 1.0, bias_after_scale=False), 2 * (X + 1)),
    "shape": (lambda x, **_: paddle.shape(x), [2, 2, 3]),
    "slice": (lambda x, **_: paddle.slice(x, [1, 2], [0, 1], [1, 3]), X[:, 0:1, 1:3]),
    "split": (lambda x, **_: paddle.split(x, 3, axis=2)[1], X[:, :, 1:2]),
    "split in sections": (lambda x, **_: paddle.split(x, [1, 2], axis=-1)[1], X[:, :, 1:]),
    "sqrt": (lambda p, **_: paddle.sqrt(p), np.sqrt(P)),
    "square": (lambda x, **_: paddle.square(x), X**2),
    "squeeze": (lambda x, **_: paddle.squeeze(paddle.slice(x, [1], [0], [1]), 1), X[:, 0]),
    "stack": (lambda x, y, **_: paddle.stack([x, y], axis=1), np.stack([X, Y], 1)),
    "subtract": (lambda x, y, **_: paddle.subtract(x, y), X - Y),
    "sum": (lambda x, **_: paddle.sum(x, axis=1), X.sum(1)),
    "sum of truth": (lambda x, **_: paddle.sum(x > 0.0, axis=-1, dtype="float32"), (X > 0).sum(-1)),
    "tanh": (lambda x, **_: paddle.tanh(x), np.tanh(X)),
    "tile": (lambda x, **_: paddle.tile(x, [1, 2, 1]), np.tile(X, (1, 2, 1))),
    "tile fewer": (lambda x, **_: paddle.tile(x, [2]), np.tile(X, 2)),
    "to_tensor": (lambda **_: paddle.to_tensor([[1.5, 2.0]]), [[1.5, 2.0]]),
    "to_tensor of integers": (lambda **_: paddle.to_tensor([3, 4]), [3, 4]),
    "to_tensor of truth": (lambda **_: paddle.to_tensor([True, False]), [True, False]),
    "to_tensor of one": (lambda **_: paddle.to_tensor(5.0), [5.0]),
    "topk": (lambda x, **_: paddle.topk(x, 2)[0], -np.sort(-X)[..., :2]),
    "topk places": (lambda x, **_: paddle.topk(x, 2)[1], (-X).argsort(-1)[..., :2]),
    "topk along an axis": (lambda x, **_: paddle.topk(x, 1, axis=1, largest=False)[0], X.min(1, keepdims=True)),
    "transpose": (lambda x, **_: paddle.transpose(x, perm=[0, 2, 1]), X.transpose(0, 2, 1)),
    "tril": (lambda x, **_: paddle.tril(x), np.tril(X)),
    "triu": (lambda x, **_: paddle.triu(x, diagonal=1), np.triu(X, 1)),
    "unsqueeze": (lambda x, **_: paddle.unsqueeze(x, axis=[1, -1]), X[:, None, :, :, None]),
    "where": (lambda x, y, **_: paddle.where(x > y, x, y), np.maximum(X, Y)),
    "zeros": (lambda **_: paddle.zeros([3], "int64"), np.zeros(3)),
    "zeros_like": (lambda x, **_: paddle.zeros_like(x), np.zeros_like(X)),
    "F.binary_cross_entropy": (lambda p, z, **_: F.binary_cross_entropy(p, z), [BCE.mean()]),
    "F.binary_cross_entropy weighed": (
        lambda p, z, y, **_: F.binary_cross_entropy(p, z, weight=y, reduction="sum"),
        [(BCE * Y).sum()],
    ),
    "F.binary_cross_entropy_with_logits": (
        lambda x, z, **_: F.binary_cross_entropy_with_logits(x, z, reduction="none"),
        BCE,
    ),
    "F.binary_cross_entropy_with_logits pos_weight": (
        lambda x, z, **_: F.binary_cross_entropy_with_logits(x, z, pos_weight=paddle.to_tensor([3.0, 1.0, 2.0])),
        [(BCE * (Z * (np.array([3.0, 1.0, 2.0]) - 1) + 1)).mean()],
    ),
    "F.cosine_similarity": (
        lambda x, y, **_: F.cosine_similarity(x, y, axis=-1),
        (X * Y).sum(-1) / np.linalg.norm(X, axis=-1) / np.linalg.norm(Y, axis=-1),
    ),
    "F.cross_entropy": (
        lambda x, ids, **_: F.cross_entropy(x, paddle.unsqueeze(ids, -1)),
        [-np.log(np.take_along_axis(softmax(X), IDS[..., None], -1)).mean()],
    ),
    "F.cross_entropy of flat labels": (
        lambda x, ids, **_: F.cross_entropy(x, ids, reduction="none"),
        -np.log(np.take_along_axis(softmax(X), IDS[..., None], -1))[..., 0],
    ),
    "F.cross_entropy ignoring": (
        lambda x, ids, **_: F.cross_entropy(x, ids, ignore_index=1),
        [-np.log(np.take_along_axis(softmax(X), IDS[..., None], -1))[IDS != 1].mean()],
    ),
    "F.cross_entropy of probabilities": (
        lambda p, ids, **_: F.cross_entropy(p, ids, use_softmax=False, reduction="sum"),
        [-np.log(np.take_along_axis(P, IDS[..., None], -1)).sum()],
    ),
    "F.cross_entropy weighed": (
        lambda x, ids, **_: F.cross_entropy(
            paddle.slice(x, [1], [0], [1]), paddle.slice(ids, [1], [0], [1]), weight=paddle.to_tensor([1.0, 2.0, 4.0])
        ),
        [
            -(
                np.log(np.take_along_axis(softmax(X[:, :1]), IDS[:, :1, None], -1))[..., 0]
                * np.array([1.0, 2.0, 4.0])[IDS[:, :1]]
            ).sum()
            / np.array([1.0, 2.0, 4.0])[IDS[:, :1]].sum()
        ],
    ),
    "F.l1_loss": (lambda x, y, **_: F.l1_loss(x, y), [np.abs(X - Y).mean()]),
    "F.leaky_relu": (lambda x, **_: F.leaky_relu(x, 0.1), np.where(X > 0, X, 0.1 * X)),
    "F.log_loss": (
        lambda p, z, **_: F.log_loss(p, z),
        -Z * np.log(P + 1e-4) - (1 - Z) * np.log(1 - P + 1e-4),
    ),
    "F.log_softmax": (lambda x, **_: F.log_softmax(x), np.log(softmax(X))),
    "F.mse_loss": (lambda x, y, **_: F.mse_loss(x, y), [((X - Y) ** 2).mean()]),
    "F.normalize": (lambda x, **_: F.normalize(x, axis=1), X / np.linalg.norm(X, axis=1, keepdims=True)),
    "F.one_hot": (lambda ids, **_: F.one_hot(ids, 3), np.eye(3)[IDS]),
    "F.prelu": (
        lambda x, **_: F.prelu(x, paddle.to_tensor([0.1, 0.5])),
        np.where(X > 0, X, X * np.array([0.1, 0.5])[:, None]),
    ),
    "F.relu": (lambda x, **_: F.relu(x), X.clip(0)),
    "F.sequence_mask": (
        lambda ids, **_: F.sequence_mask(ids, maxlen=3, dtype="float32"),
        np.arange(3) < IDS[..., None],
    ),
    "F.sigmoid": (lambda x, **_: F.sigmoid(x), P),
    "F.silu": (lambda x, **_: F.silu(x), X * P),
    "F.softmax": (lambda x, **_: F.softmax(x), softmax(X)),
    "F.softplus": (lambda x, **_: F.softplus(x), np.log1p(np.exp(X))),
    "F.square_error_cost": (lambda x, y, **_: F.square_error_cost(x, y), (X - Y) ** 2),
    "F.dropout in evaluation": (lambda x, **_: F.dropout(x, 0.3, training=False, mode="downscale_in_infer"), X * 0.7),
    "static.nn.continuous_value_model": (
        lambda p, y, **_: paddle.static.nn.continuous_value_model(paddle.reshape(p, [-1, 6]), y),
        np.concatenate(
            [
                np.log(P.reshape(2, 6)[:, :1] + 1),
                np.log(P.reshape(2, 6)[:, 1:2] + 1) - np.log(P.reshape(2, 6)[:, :1] + 1),
                P.reshape(2, 6)[:, 2:],
            ],
            1,
        ),
    ),
    "static.nn.continuous_value_model without": (
        lambda p, y, **_: paddle.static.nn.continuous_value_model(paddle.reshape(p, [-1, 6]), y, False),
        P.reshape(2, 6)[:, 2:],
    ),
    "L.assign": (lambda x, **_: L.assign(x), X),
    "L.assign of numbers": (lambda **_: L.assign(np.array([1.0, 2.0])), [1.0, 2.0]),
    "L.cos_sim": (
        lambda x, y, **_: L.cos_sim(x[:, 0], y[:, 0]),
        (X[:, 0] * Y[:, 0]).sum(1, keepdims=True)
        / np.linalg.norm(X[:, 0], axis=1, keepdims=True)
        / np.linalg.norm(Y[:, 0], axis=1, keepdims=True),
    ),
    "L.dropout in evaluation": (lambda x, **_: L.dropout(x, 0.3, is_test=True), X * 0.7),
    "L.elementwise_add along an axis": (
        lambda x, **_: L.elementwise_add(x, L.assign(np.array([1.0, 2.0], "float32")), axis=1, act="relu"),
        (X + np.array([1.0, 2.0])[:, None]).clip(0),
    ),
    "L.expand": (lambda x, **_: L.expand(x, [1, 2, 1]), np.tile(X, (1, 2, 1))),
    "L.fill_constant": (lambda **_: L.fill_constant([2], "int64", 3), [3, 3]),
    "L.gather": (lambda x, **_: L.gather(x, L.assign(np.array([1, 1]))), X[[1, 1]]),
    "L.matmul": (lambda x, y, **_: L.matmul(x, y, transpose_y=True, alpha=2.0), 2 * X @ Y.transpose(0, 2, 1)),
    "L.one_hot": (lambda ids, **_: L.one_hot(L.unsqueeze(ids, [2]), 3), np.eye(3)[IDS]),
    "L.reduce_min": (lambda x, **_: L.reduce_min(x, dim=[1, 2]), X.min((1, 2))),
    "L.reduce_sum": (lambda x, **_: L.reduce_sum(x, dim=1, keep_dim=True), X.sum(1, keepdims=True)),
    "L.reshape": (lambda x, **_: L.reshape(x, [-1, 6], act="relu", inplace=True), X.reshape(-1, 6).clip(0)),
    "L.softmax_with_cross_entropy": (
        lambda x, ids, **_: L.softmax_with_cross_entropy(x, L.unsqueeze(ids, [2]), numeric_stable_mode=False),
        -np.log(np.take_along_axis(softmax(X), IDS[..., None], -1)),
    ),
    "L.sums": (lambda x, y, **_: L.sums([x, y]), X + Y),
    "L.topk": (lambda x, **_: L.topk(x, 1)[0], X.max(-1, keepdims=True)),
    "fluid.one_hot": (lambda ids, **_: paddle.fluid.one_hot(ids, depth=3), np.eye(3)[IDS]),
    "operators": (lambda x, y, **_: (1 - x) * 2 / (y * y + 1.0) - x**2, (1 - X) * 2 / (Y * Y + 1) - X**2),
    "indices": (lambda x, **_: x[:, 1, -2:], X[:, 1, -2:]),
}


@pytest.mark.parametrize("name", TABLE)
def test_numbers_are_those_of_numpy(name):
    build, expected = TABLE[name]
    (got,) = run(build, x=X, y=Y, p=P, z=Z, ids=IDS)
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    np.testing.assert_allclose(np.asarray(got, np.float64), expected.astype(np.float64), rtol=2e-5, atol=2e-6)


def test_random_numbers_differ_in_every_step_and_follow_the_seed_of_the_program():
    paddle.seed(3)
    flat, bell = paddle.rand([200, 5]), paddle.normal(2.0, 0.5, shape=[200, 5])
    fixed = paddle.uniform([4], min=2.0, max=3.0, seed=1)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    first = exe.run(feed={}, fetch_list=[flat, bell, fixed])
    second = exe.run(feed={}, fetch_list=[flat, bell, fixed])
    assert 0 <= first[0].min() < first[0].max() < 1 and abs(first[0].mean() - 0.5) < 0.05
    assert abs(first[1].mean() - 2) < 0.1 and abs(first[1].std() - 0.5) < 0.1
    assert (first[0] != second[0]).any() and (first[2] == second[2]).all()


def test_gradients_flow_through_topk_and_prelu():
    weight = paddle.create_parameter([4], "float32", name="w", default_initializer=paddle.nn.initializer.Constant(1.0))
    x = paddle.static.data("x", [None, 4])
    loss = paddle.mean(paddle.topk(x * weight, 2)[0]) + paddle.sum(F.prelu(-weight, paddle.to_tensor([0.5])))
    (pair,) = paddle.static.gradients(loss, [weight])
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    (gradient,) = exe.run(feed={"x": [[4.0, 1.0, 3.0, 2.0]]}, fetch_list=[pair])
    np.testing.assert_allclose(gradient, [2.0 - 0.5, -0.5, 1.5 - 0.5, -0.5])


REFUSED = {
    "arange": (lambda x: paddle.arange(x, 5), NotImplementedError, "`start` and `step` of `paddle.arange`"),
    "einsum twice": (lambda x: paddle.einsum("ii->i", x), NotImplementedError, "`ii->i`"),
    "einsum three": (lambda x: paddle.einsum("ij,ij,ij->i", x, x, x), NotImplementedError, "one or two operands"),
    "einsum letters": (lambda x: paddle.einsum("ijk->i", x), ValueError, "names 3 dimensions"),
    "masked_select": (lambda x: paddle.masked_select(x, x), ValueError, "a mask of booleans of the same shape"),
    "normalize": (lambda x: F.normalize(x, p=1), NotImplementedError, "`p=1` of `normalize`"),
    "rand": (lambda x: paddle.rand([2], "int64"), NotImplementedError, "`dtype` `int64` of `paddle.rand`"),
    "to_tensor": (lambda x: paddle.to_tensor([1], "float16"), NotImplementedError, "`dtype` `float16`"),
    "topk": (lambda x: paddle.topk(x, 9), ValueError, "k = 9"),
    "tril": (lambda x: paddle.tril(x), ValueError, "two last dimensions of fixed sizes"),
    "fluid reshape": (lambda x: L.reshape(x, [-1], actual_shape=x), NotImplementedError, "`actual_shape`"),
    "where": (lambda x: paddle.where(x > 0.0, x), ValueError, "both `x` and `y`, or neither"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_arguments_are_named(name):
    build, kind, message = REFUSED[name]
    x = static.data("x", [None, 4])
    with pytest.raises(kind, match=message):
        build(x)
