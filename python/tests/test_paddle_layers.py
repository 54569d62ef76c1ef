"""Convolutions, recurrent layers, attention and run-time shapes under PaddlePaddle's names, against NumPy."""

import numpy as np
import pytest

import openfleet.compat.paddle as paddle
from openfleet.compat.paddle import nn
from openfleet.compat.paddle.nn import functional as F

RANDOM = np.random.RandomState(7)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def values(layer):
    """The parameters of a layer by their names within it, with random values in the scope."""
    scope = paddle.static.global_scope()
    given = {}
    for name, parameter in layer.named_parameters():
        given[name] = RANDOM.uniform(-0.7, 0.7, parameter.shape).astype(np.float32)
        scope.find_var(parameter.name).get_tensor().set(given[name])
    return given


def started():
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    return exe


def cell_step(kind, weights, x, state):
    w_ih, w_hh, b_ih, b_hh = weights
    a, b = x @ w_ih.T + b_ih, state[0] @ w_hh.T + b_hh
    if kind == "SimpleRNN":
        return [np.tanh(a + b)]
    if kind == "GRU":
        (ar, az, ac), (br, bz, bc) = np.split(a, 3, -1), np.split(b, 3, -1)
        r, z = sigmoid(ar + br), sigmoid(az + bz)
        return [z * state[0] + (1 - z) * np.tanh(ac + r * bc)]
    i, f, g, o = np.split(a + b, 4, -1)
    cell = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(cell), cell]


def over_time(kind, weights, x, lengths, reverse):
    batch, steps, hidden = x.shape[0], x.shape[1], weights[1].shape[1]
    state = [np.zeros((batch, hidden), np.float32) for _ in range(2 if kind == "LSTM" else 1)]
    out = np.zeros((batch, steps, hidden), np.float32)
    for t in reversed(range(steps)) if reverse else range(steps):
        has = (t < lengths)[:, None]
        state = [np.where(has, new, old) for new, old in zip(cell_step(kind, weights, x[:, t], state), state)]
        out[:, t] = np.where(has, state[0], 0)
    return out, state


@pytest.mark.parametrize("with_lengths", [False, True])
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "SimpleRNN"])
def test_two_layers_in_two_directions_agree_with_numpy(kind, with_lengths):
    x = paddle.static.data("x", [None, 4, 3])
    lengths = paddle.static.data("lengths", [None], "int64")
    layer = getattr(nn, kind)(3, 2, num_layers=2, direction="bidirect")
    out, last = layer(x, None, lengths if with_lengths else None)
    exe = started()
    given = values(layer)
    x_value = RANDOM.uniform(-1, 1, (3, 4, 3)).astype(np.float32)
    counts = np.array([4, 1, 3]) if with_lengths else np.array([4, 4, 4])
    fetched = exe.run(feed={"x": x_value, "lengths": counts}, fetch_list=[out, *(last if kind == "LSTM" else [last])])
    expected, states = x_value, []
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    for number in range(2):
        both = []
        for direction in ("fw", "bw"):
            weights = [given[f"_layers.{number}.{direction}.cell.{name}"] for name in names]
            ran, state = over_time(kind, weights, expected, counts, direction == "bw")
            both.append(ran)
            states.append(state)
        expected = np.concatenate(both, -1)
    np.testing.assert_allclose(fetched[0], expected, atol=2e-6)
    for part, got in enumerate(fetched[1:]):
        np.testing.assert_allclose(got, np.stack([state[part] for state in states]), atol=2e-6)


def test_a_cell_of_the_scripts_own_runs_over_a_sequence():
    class Sum(nn.RNNCellBase):
        @property
        def state_shape(self):
            return (2,)

        def forward(self, inputs, states):
            total = inputs + states
            return total, total

    x = paddle.static.data("x", [None, 3, 2])
    out, last = nn.RNN(Sum())(x)
    value = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    got = started().run(feed={"x": value}, fetch_list=[out, last])
    np.testing.assert_array_equal(got[0], value.cumsum(1))
    np.testing.assert_array_equal(got[1], value.sum(1))


def test_recurrent_layers_train_over_a_length_that_only_the_batch_knows():
    x = paddle.static.data("x", [-1, -1, 2])
    label = paddle.static.data("label", [-1, 1])
    out, _ = nn.GRU(2, 4)(x)
    loss = paddle.mean(F.square_error_cost(nn.Linear(4, 1)(out[:, -1, :]), label))
    paddle.optimizer.Adam(0.02).minimize(loss)
    exe = started()
    losses = []
    for step in range(150):
        length = 2 + step % 3
        batch = RANDOM.uniform(-1, 1, (16, length, 2)).astype(np.float32)
        feed = {"x": batch, "label": batch[:, -1].sum(1, keepdims=True)}
        losses.append(float(exe.run(feed=feed, fetch_list=[loss])[0].item()))
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:20]), losses


def test_rows_of_a_length_are_zero_after_it_over_a_number_of_steps_that_only_the_batch_knows():
    x = paddle.static.data("x", [-1, -1, 2])
    lengths = paddle.static.data("lengths", [-1], "int64")
    out, last = nn.GRU(2, 3)(x, None, lengths)
    exe = started()
    for steps in (4, 2):
        feed = {"x": RANDOM.rand(2, steps, 2).astype(np.float32), "lengths": [1, steps]}
        states, final = exe.run(feed=feed, fetch_list=[out, last])
        assert states.shape == (2, steps, 3) and (states[0, 1:] == 0).all() and (states[1] != 0).all()
        np.testing.assert_array_equal(final[0], [states[0, 0], states[1, -1]])


def convolved(x, weight, bias, stride, padding, dilation, groups):
    x = np.pad(x, [(0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2])
    filters, of_group, kh, kw = weight.shape
    reach = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilation)]
    sizes = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, stride)]
    out = np.zeros((len(x), filters, *sizes))
    for f in range(filters):
        first = f // (filters // groups) * of_group
        for i in range(sizes[0]):
            for j in range(sizes[1]):
                rows, columns = i * stride[0], j * stride[1]
                window = x[:, first : first + of_group, rows : rows + reach[0], columns : columns + reach[1]]
                out[:, f, i, j] = (window[:, :, :: dilation[0], :: dilation[1]] * weight[f]).sum((1, 2, 3)) + bias[f]
    return out


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 0, 1, 1), (2, 1, 1, 1), ([1, 2], [0, 2], [2, 1], 1), (1, 1, 1, 2)],
)
def test_convolutions_agree_with_numpy(stride, padding, dilation, groups):
    x = paddle.static.data("x", [None, 4, 6, 5])
    layer = nn.Conv2D(4, 6, (3, 2), stride, padding, dilation, groups)
    out = layer(x)
    exe = started()
    given = values(layer)
    value = RANDOM.uniform(-1, 1, (3, 4, 6, 5)).astype(np.float32)
    both = [[one, one] if isinstance(one, int) else one for one in (stride, padding, dilation)]
    expected = convolved(value, given["weight"], given["bias"], *both, groups)
    assert out.shape == (-1, *expected.shape[1:])
    np.testing.assert_allclose(exe.run(feed={"x": value}, fetch_list=[out])[0], expected, atol=1e-5)


def test_sequences_are_convolved_and_pooled_like_planes_of_height_one():
    x = paddle.static.data("x", [None, 3, 7])
    layer = nn.Conv1D(3, 2, 3, stride=2, padding=1)
    last = nn.Conv1D(3, 2, 3, weight_attr=layer.weight.name, bias_attr=layer.bias.name, data_format="NLC")
    outs = [
        layer(x),
        last(paddle.transpose(x, [0, 2, 1])),
        F.max_pool1d(x, 3, 2, 1),
        F.avg_pool1d(x, 3, 2, 1),
        nn.AdaptiveMaxPool1D(2)(x),
        nn.Conv1D(3, 2, 3, padding="same", weight_attr=layer.weight.name, bias_attr=layer.bias.name)(x),
    ]
    exe = started()
    given = values(layer)
    value = RANDOM.uniform(-1, 1, (2, 3, 7)).astype(np.float32)
    got = exe.run(feed={"x": value}, fetch_list=outs)
    plane, weight = value[:, :, None], given["weight"][:, :, None]

    def planes(stride, padding):
        return convolved(plane, weight, given["bias"], (1, stride), (0, padding), (1, 1), 1)[:, :, 0]

    np.testing.assert_allclose(got[0], planes(2, 1), atol=1e-5)
    np.testing.assert_allclose(got[1], planes(1, 0).transpose(0, 2, 1), atol=1e-5)
    windows = [value[:, :, max(0, 2 * i - 1) : 2 * i + 2] for i in range(4)]
    np.testing.assert_allclose(got[2], np.stack([window.max(-1) for window in windows], -1), atol=1e-6)
    np.testing.assert_allclose(got[3], np.stack([window.mean(-1) for window in windows], -1), atol=1e-6)
    np.testing.assert_allclose(got[4], np.stack([value[:, :, :4].max(-1), value[:, :, 3:].max(-1)], -1), atol=1e-6)
    np.testing.assert_allclose(got[5], planes(1, 1), atol=1e-5)


def test_attention_and_an_encoder_layer_agree_with_numpy():
    x = paddle.static.data("x", [None, 4, 6])
    mask = paddle.static.data("mask", [None, 1, 1, 4], "bool")
    attention = nn.MultiHeadAttention(6, 2)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, activation="gelu", normalize_before=True)
    outs = [attention(x, attn_mask=mask), layer(x), nn.TransformerEncoder(layer, 2, nn.LayerNorm(6))(x)]
    exe = started()
    given, inner = values(attention), values(layer)
    value = RANDOM.uniform(-1, 1, (3, 4, 6)).astype(np.float32)
    kept = np.array([[1, 1, 1, 1], [1, 0, 0, 1], [0, 1, 1, 1]], bool).reshape(3, 1, 1, 4)
    got = exe.run(feed={"x": value, "mask": kept}, fetch_list=outs)

    def attended(weights, prefix, x, kept=None):
        def heads(name):
            y = x @ weights[f"{prefix}{name}.weight"] + weights[f"{prefix}{name}.bias"]
            return y.reshape(3, 4, 2, 3).transpose(0, 2, 1, 3)

        scores = heads("q_proj") @ heads("k_proj").transpose(0, 1, 3, 2) / np.sqrt(3)
        scores = scores if kept is None else np.where(kept, scores, scores - 1e9)
        joined = (softmax(scores) @ heads("v_proj")).transpose(0, 2, 1, 3).reshape(3, 4, 6)
        return joined @ weights[f"{prefix}out_proj.weight"] + weights[f"{prefix}out_proj.bias"]

    def normal(name, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * inner[f"{name}.weight"] + inner[f"{name}.bias"]

    def gelu(x):
        from math import erf

        return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))

    np.testing.assert_allclose(got[0], attended(given, "", value, kept), atol=1e-5)
    y = value + attended(inner, "self_attn.", normal("norm1", value))
    dense = gelu(normal("norm2", y) @ inner["linear1.weight"] + inner["linear1.bias"])
    np.testing.assert_allclose(got[1], y + dense @ inner["linear2.weight"] + inner["linear2.bias"], atol=1e-5)
    assert got[2].shape == (3, 4, 6)


X = RANDOM.uniform(0.2, 2.0, (2, 3, 4)).astype(np.float32)
FUNCTIONS = {
    "prod": (lambda x: paddle.prod(x, axis=1), X.prod(1)),
    "cumsum": (lambda x: x.cumsum(1), X.cumsum(1)),
    "cumsum of all": (lambda x: paddle.cumsum(x)[-4:], X.reshape(2, -1).ravel().cumsum()[-4:]),
    "log1p": (lambda x: paddle.log1p(x), np.log1p(X)),
    "log2": (lambda x: x.log2(), np.log2(X)),
    "expm1": (lambda x: paddle.expm1(x), np.expm1(X)),
    "sort": (lambda x: paddle.sort(x, 1, True), -np.sort(-X, 1)),
    "argsort": (lambda x: paddle.argsort(x, 1), X.argsort(1)),
    "argmin": (lambda x: x.argmin(-1), X.argmin(-1)),
    "index_select": (lambda x: x.index_select(paddle.to_tensor([2, 0]), 1), X[:, [2, 0]]),
    "flip": (lambda x: paddle.flip(x, [1, 2]), X[:, ::-1, ::-1]),
    "every other": (lambda x: x[:, ::2], X[:, ::2]),
    "a new dimension": (lambda x: x[:, None, ..., 1], X[:, None, :, 1]),
    "remainder": (lambda x: paddle.mod(x, 0.75), np.mod(X, np.float32(0.75))),
    "2 to the power": (lambda x: 2**x, 2**X),
    "logsumexp": (lambda x: paddle.logsumexp(x, axis=[1, 2]), np.log(np.exp(X).sum((1, 2)))),
    "std": (lambda x: paddle.std(x, axis=1), X.std(1, ddof=1)),
    "var": (lambda x: x.var(axis=1, unbiased=False), X.var(1)),
    "any": (lambda x: paddle.any(x > 1.5, axis=1), (X > 1.5).any(1)),
    "all": (lambda x: paddle.all(x > 0.5, axis=1), (X > 0.5).all(1)),
    "unbind": (lambda x: paddle.unbind(x, 1)[2], X[:, 2]),
    "masked_fill": (lambda x: x.masked_fill(x > 1.0, 9.0), np.where(X > 1.0, np.float32(9), X)),
    "bitwise": (lambda x: paddle.cast(x * 10, "int64").bitwise_and(paddle.to_tensor([6])), (X * 10).astype(int) & 6),
    "bitwise_not": (lambda x: paddle.bitwise_not(paddle.cast(x * 10, "int64")), ~(X * 10).astype(int)),
    "floor_divide": (
        lambda x: paddle.cast(x * 10, "int64").floor_divide(paddle.to_tensor([3])),
        (X * 10).astype(int) // 3,
    ),
    "logical_xor": (lambda x: paddle.logical_xor(x > 1.0, x > 1.5), (X > 1.0) ^ (X > 1.5)),
    "elu": (lambda x: F.elu(x - 1.0), np.where(X > 1, X - 1, np.expm1(X - 1))),
    "pad": (
        lambda x: F.pad(x, [0, 0, 1, 0, 0, 2], value=7.0),
        np.pad(X, [(0, 0), (1, 0), (0, 2)], constant_values=7.0),
    ),
    "kl_div": (lambda x: F.kl_div(paddle.log(x), x * 2.0, "sum"), [(X * 2 * np.log(2)).sum()]),
    "where": (lambda x: paddle.where(x[0] > 1.0)[1], np.nonzero(X[0] > 1.0)[1][:, None]),
    "scatter": (
        lambda x: paddle.scatter(x[0], paddle.to_tensor([2, 0]), x[1][0:2]),
        np.stack([X[1, 1], X[0, 1], X[1, 0]]),
    ),
    "numel": (lambda x: x.numel(), [X.size]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_methods_agree_with_numpy(name):
    build, expected = FUNCTIONS[name]
    x = paddle.static.data("x", [None, 3, 4])
    out = build(x)
    (got,) = started().run(feed={"x": X}, fetch_list=[out])
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(expected, np.float64), rtol=2e-5, atol=2e-6)


def test_shapes_follow_what_is_fed():
    ids = paddle.static.data("ids", [-1, -1], "int64")
    lengths = paddle.static.data("lengths", [-1], "int64")
    rows = nn.Embedding(50, 4)(ids)
    mask = F.sequence_mask(lengths)
    size = paddle.shape(ids)
    positions = paddle.arange(size[1])
    tiled = paddle.tile(paddle.unsqueeze(positions, 0), [size[0], 1])
    flat = paddle.reshape(rows, [size[0] * size[1], 4])
    exe = started()
    for batch, length in [(2, 5), (3, 1), (2, 5), (1, 4)]:
        feed = {"ids": np.arange(batch * length).reshape(batch, length), "lengths": [length] * batch}
        got = exe.run(feed=feed, fetch_list=[rows, mask, tiled, flat])
        assert got[0].shape == (batch, length, 4)
        np.testing.assert_array_equal(got[1], np.ones((batch, length)))
        np.testing.assert_array_equal(got[2], np.tile(np.arange(length), (batch, 1)))
        np.testing.assert_array_equal(got[3], got[0].reshape(-1, 4))


def test_an_error_of_shapes_names_the_op_and_the_line_of_the_script():
    x, y = paddle.static.data("x", [-1, -1]), paddle.static.data("y", [-1, -1])
    total = x + y
    with pytest.raises(ValueError) as raised:
        started().run(feed={"x": np.ones((2, 3)), "y": np.ones((2, 4))}, fetch_list=[total])
    message = str(raised.value)
    assert "`elementwise_add`" in message and "[2, 3] and [2, 4]" in message
    assert "test_paddle_layers.py:" in message


def test_sparse_ids_that_a_program_computes_are_looked_up_in_a_dense_table(capfd):
    ids = paddle.static.data("ids", [-1, 4], "int64")
    layer = nn.Embedding(20, 3, sparse=True)
    head, moved = layer(ids[:, 0:2]), nn.Embedding(20, 3, sparse=True)(paddle.reshape(ids, [-1, 2, 2]))
    kinds = {one.name: one.kind for one in paddle.static.default_main_program().all_parameters()}
    assert sorted(kinds.values()) == ["parameter", "table"]
    assert "its table is a dense parameter" in capfd.readouterr().err
    got = started().run(feed={"ids": [[1, 2, 3, 4]]}, fetch_list=[head, moved])
    assert got[0].shape == (1, 2, 3) and got[1].shape == (1, 2, 2, 3)
