"""`paddle.nn` in static programs: layers as objects, and rank models as users of the public zoo write them."""

import numpy as np
import pytest

import openfleet.compat.paddle as paddle
import openfleet.compat.paddle.nn as nn
import openfleet.compat.paddle.nn.functional as F
from openfleet import static

SLOTS, DENSE, IDS = 3, 2, 50


# Layers.


class Tower(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(2.0))
        self.linear = nn.Linear(4, width, bias_attr=False)
        self.rest = nn.Sequential(nn.ReLU(), ("last", nn.Linear(width, 1)))
        self.note = "not a parameter"

    def forward(self, x):
        return self.rest(self.linear(x)) * self.scale


def test_attributes_that_are_layers_or_parameters_are_found():
    tower = Tower(3)
    names = [name for name, _ in tower.named_parameters()]
    assert names == ["scale", "linear.weight", "rest.last.weight", "rest.last.bias"]
    assert [parameter.name for parameter in tower.parameters()] == [
        "tower_0.w_0",
        "linear_0.w_0",
        "linear_1.w_0",
        "linear_1.b_0",
    ]
    assert [type(layer).__name__ for layer in tower.sublayers()] == ["Linear", "Sequential", "ReLU", "Linear"]
    assert [name for name, _ in tower.named_children()] == ["linear", "rest"]
    assert tower.linear.bias is None
    tower.add_sublayer("extra", nn.Sigmoid())
    tower.add_parameter("offset", tower.create_parameter([2], is_bias=True))
    assert isinstance(tower.extra, nn.Sigmoid) and "offset" in dict(tower.named_parameters())
    del tower.extra
    assert not hasattr(tower, "extra")


def test_a_layer_without_super_init_raises_with_a_hint():
    class Hasty(nn.Layer):
        def __init__(self):
            self.linear = nn.Linear(1, 1)

    with pytest.raises(ValueError, match=r"call `super\(\).__init__\(\)`"):
        Hasty()


def test_lists_of_layers_and_parameters_are_found_and_indexed():
    layers = nn.LayerList([nn.Linear(2, 2) for _ in range(2)])
    layers.append(nn.Linear(2, 1))
    layers.insert(0, nn.Tanh())
    assert len(layers) == 4 and isinstance(layers[0], nn.Tanh) and len(layers[1:]) == 3
    weights = nn.ParameterList([paddle.create_parameter([2], "float32") for _ in range(3)])
    assert len(weights) == 3 and weights[1].shape == (2,) and len(weights.parameters()) == 3
    assert len(layers.parameters()) == 6


def run(out, **feed):
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    return exe.run(feed=feed, fetch_list=[out])[0]


def test_a_layer_that_is_called_twice_has_its_parameters_once():
    x = paddle.static.data("x", [None, 2, 3])
    linear = nn.Linear(3, 4)
    out = linear(x) - linear(x)
    assert len(paddle.static.default_main_program().all_parameters()) == 2
    assert out.shape == (-1, 2, 4)
    assert (run(out, x=np.ones((5, 2, 3))) == 0).all()


def test_linear_embedding_and_norms_match_numpy():
    rng = np.random.default_rng(0)
    x = paddle.static.data("x", [None, 3])
    ids = paddle.static.data("ids", [None, 2], "int64")
    linear, norm = nn.Linear(3, 2), nn.LayerNorm(2)
    embedding = nn.Embedding(10, 4, padding_idx=0)
    outs = [linear(x), norm(linear(x)), embedding(ids), nn.PReLU(init=0.5)(x), nn.Softmax()(x), nn.LeakyReLU(0.1)(x)]
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    values = rng.normal(size=(4, 3)).astype("float32")
    numbers = np.array([[0, 1], [9, 0], [3, 3], [2, 1]])
    y, normed, rows, leaky, shares, slope = exe.run(feed={"x": values, "ids": numbers}, fetch_list=outs)
    scope = paddle.static.global_scope()
    weight = np.array(scope.find_var(linear.weight.name).get_tensor())
    expected = values @ weight + np.array(scope.find_var(linear.bias.name).get_tensor())
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    centred = (expected - expected.mean(1, keepdims=True)) / np.sqrt(expected.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(normed, centred, rtol=1e-3, atol=1e-4)
    table = np.array(scope.find_var(embedding.weight.name).get_tensor())
    np.testing.assert_allclose(rows, table[numbers] * (numbers != 0)[..., None])
    np.testing.assert_allclose(leaky, np.where(values > 0, values, 0.5 * values), rtol=1e-6)
    np.testing.assert_allclose(slope, np.where(values > 0, values, 0.1 * values), rtol=1e-6)
    np.testing.assert_allclose(shares.sum(1), np.ones(4), rtol=1e-6)


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm1D(3), lambda: nn.BatchNorm(3, act="relu")])
def test_batch_norm_uses_the_batch_in_training_and_moving_averages_in_evaluation(layer):
    x = paddle.static.data("x", [None, 3])
    out = layer()(x)
    test = paddle.static.default_main_program().clone(for_test=True)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    values = np.random.default_rng(1).normal(3.0, 2.0, size=(64, 3))
    for _ in range(200):
        (trained,) = exe.run(feed={"x": values}, fetch_list=[out])
    (evaluated,) = exe.run(test, feed={"x": values[:5]}, fetch_list=[out])
    normal = (values - values.mean(0)) / values.std(0)
    normal = normal.clip(0) if "relu" in paddle.static.default_main_program().to_string() else normal
    np.testing.assert_allclose(trained, normal, atol=1e-3)
    np.testing.assert_allclose(evaluated, normal[:5], atol=1e-3)


def test_dropout_drops_in_training_only():
    x = paddle.static.data("x", [None, 100])
    layer = nn.Dropout(p=0.4)
    out = layer(x)
    test = paddle.static.default_main_program().clone(for_test=True)
    layer.eval()
    assert layer(x) is x and not layer.training
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    (trained,) = exe.run(feed={"x": np.ones((50, 100))}, fetch_list=[out])
    (evaluated,) = exe.run(test, feed={"x": np.ones((50, 100))}, fetch_list=[out])
    assert 0.35 < (trained == 0).mean() < 0.45 and (evaluated == 1).all()


@pytest.mark.parametrize("name", ["Conv3D", "Conv2DTranspose", "Transformer"])
def test_missing_layers_are_named(name):
    with pytest.raises(NotImplementedError, match=f"`paddle.nn.{name}` is not available"):
        getattr(nn, name)(3, 4, 5)


def test_values_of_a_program_can_be_set_by_name():
    x = paddle.static.data("x", [None, 2])
    linear = nn.Linear(2, 1)
    out = linear(x)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    state = {linear.weight.name: np.array([[2.0], [3.0]]), linear.bias.name: np.array([1.0]), "stranger": np.ones(1)}
    paddle.static.set_program_state(paddle.static.default_main_program(), state)
    assert exe.run(feed={"x": [[1.0, 1.0]]}, fetch_list=[out])[0].tolist() == [[6.0]]


def test_an_optimizer_trains_only_the_parameters_it_is_given():
    x = paddle.static.data("x", [None, 2])
    trained, fixed = nn.Linear(2, 2), nn.Linear(2, 1)
    loss = paddle.mean(fixed(trained(x)))
    paddle.optimizer.SGD(learning_rate=0.1, parameters=trained.parameters()).minimize(loss)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    scope = paddle.static.global_scope()
    before = [np.array(scope.find_var(layer.weight.name).get_tensor()) for layer in (trained, fixed)]
    exe.run(feed={"x": np.ones((4, 2))}, fetch_list=[loss])
    after = [np.array(scope.find_var(layer.weight.name).get_tensor()) for layer in (trained, fixed)]
    assert (before[0] != after[0]).any() and (before[1] == after[1]).all()


# Ranking models, as in the public PaddlePaddle models.


def attr(std):
    return paddle.ParamAttr(initializer=nn.initializer.Normal(std=std))


class Base(nn.Layer):
    """One table for all slots; a fully connected tower."""

    def __init__(self, sparse, dim=6, sizes=(16, 8)):
        super().__init__()
        self.dim = dim
        self.embedding = nn.Embedding(
            IDS,
            dim,
            sparse=sparse,
            weight_attr=paddle.ParamAttr(name="SparseFeatFactors", initializer=nn.initializer.Uniform(-0.3, 0.3)),
        )
        self.deep = []
        widths = [SLOTS * dim + DENSE, *sizes, 1]
        for i in range(len(widths) - 1):
            weights = paddle.ParamAttr(
                initializer=nn.initializer.Normal(std=1.0 / np.sqrt(widths[i])),
                regularizer=paddle.regularizer.L2Decay(1e-6),
            )
            linear = nn.Linear(widths[i], widths[i + 1], weight_attr=weights)
            self.add_sublayer(f"linear_{i}", linear)
            self.deep.append(linear)
            if i < len(widths) - 2:
                act = nn.ReLU()
                self.add_sublayer(f"act_{i}", act)
                self.deep.append(act)

    def rows(self, slots):
        return [paddle.reshape(self.embedding(slot), shape=[-1, self.dim]) for slot in slots]

    def tower(self, x):
        for layer in self.deep:
            x = layer(x)
        return x


class DNN(Base):
    def forward(self, slots, dense):
        return F.sigmoid(self.tower(paddle.concat(x=[*self.rows(slots), dense], axis=1)))


class WideDeep(Base):
    def __init__(self, sparse):
        super().__init__(sparse)
        self.wide = nn.Linear(DENSE, 1, weight_attr=nn.initializer.TruncatedNormal(mean=0.0, std=0.7))

    def forward(self, slots, dense):
        deep = self.tower(paddle.concat(x=[*self.rows(slots), dense], axis=1))
        return F.sigmoid(paddle.add(x=self.wide(dense), y=deep))


class FM(nn.Layer):
    """First order and pairs, by the square of the sum and the sum of squares."""

    def __init__(self, sparse, dim=6):
        super().__init__()
        self.first = nn.Embedding(IDS, 1, sparse=sparse, weight_attr=attr(0.1))
        self.second = nn.Embedding(IDS, dim, sparse=sparse, weight_attr=attr(0.3))
        self.dense_w = self.create_parameter([DENSE], default_initializer=nn.initializer.Constant(1.0))
        self.bias = self.create_parameter([1], is_bias=True)

    def forward(self, slots, dense):
        ids = paddle.concat(slots, axis=1)
        linear = paddle.sum(self.first(ids), axis=1) + paddle.sum(dense * self.dense_w, axis=1, keepdim=True)
        rows = self.second(ids)
        square_of_sum = paddle.square(paddle.sum(rows, 1))
        sum_of_squares = paddle.sum(paddle.square(rows), 1)
        pairs = 0.5 * paddle.sum(square_of_sum - sum_of_squares, 1, keepdim=True)
        return F.sigmoid(linear + pairs + self.bias)


class LR(nn.Layer):
    def __init__(self, sparse):
        super().__init__()
        self.weights = nn.Embedding(IDS, 1, sparse=sparse, weight_attr=attr(0.1))
        self.linear = nn.Linear(DENSE, 1)

    def forward(self, slots, dense):
        parts = [paddle.reshape(self.weights(slot), [-1, 1]) for slot in slots]
        return F.sigmoid(paddle.add_n([*parts, self.linear(dense)]))


class DeepFM(Base):
    def __init__(self, sparse):
        super().__init__(sparse)
        self.first = nn.Embedding(IDS, 1, sparse=sparse, weight_attr=attr(0.1))

    def forward(self, slots, dense):
        rows = self.rows(slots)
        fields = paddle.stack(rows, axis=1)
        pairs = paddle.square(paddle.sum(fields, axis=1)) - paddle.sum(paddle.square(fields), axis=1)
        first = paddle.add_n([paddle.reshape(self.first(slot), [-1, 1]) for slot in slots])
        deep = self.tower(paddle.concat([paddle.flatten(fields, 1), dense], axis=1))
        return F.sigmoid(first + 0.5 * paddle.sum(pairs, axis=1, keepdim=True) + deep)


class DCN(Base):
    def __init__(self, sparse):
        super().__init__(sparse)
        width = SLOTS * self.dim + DENSE
        self.cross_w = nn.ParameterList([self.create_parameter([width, 1], attr=attr(0.1)) for _ in range(2)])
        self.cross_b = nn.ParameterList([self.create_parameter([width], is_bias=True) for _ in range(2)])
        self.out = nn.Linear(width + 1, 1)

    def forward(self, slots, dense):
        x0 = paddle.concat([*self.rows(slots), dense], axis=1)
        x = x0
        for w, b in zip(self.cross_w, self.cross_b):
            x = x0 * paddle.matmul(x, w) + b + x
        return F.sigmoid(self.out(paddle.concat([x, self.tower(x0)], axis=-1)))


class DIN(Base):
    """The last slots are a history, weighed by how they go with the first: attention with a mask of what is there."""

    def __init__(self, sparse):
        super().__init__(sparse)
        self.attention = nn.Sequential(nn.Linear(4 * self.dim, 8), nn.PReLU(), nn.Linear(8, 1))
        self.norm = nn.BatchNorm1D(2 * self.dim)
        self.out = nn.Linear(2 * self.dim + DENSE, 1)

    def forward(self, slots, dense):
        target, *history = self.rows(slots)
        history = paddle.stack(history, axis=1)
        length = history.shape[1]
        target3 = paddle.tile(paddle.unsqueeze(target, 1), [1, length, 1])
        pairs = paddle.concat([target3, history, target3 - history, target3 * history], axis=2)
        scores = paddle.squeeze(self.attention(pairs), axis=2)
        there = F.sequence_mask(paddle.full_like(slots[0], length, "int64"), maxlen=length, dtype="bool")
        scores = paddle.where(paddle.squeeze(there, 1), scores, paddle.full_like(scores, -1e9))
        weights = paddle.unsqueeze(F.softmax(scores / self.dim**0.5), 1)
        interest = paddle.squeeze(paddle.bmm(weights, history), 1)
        return F.sigmoid(self.out(paddle.concat([self.norm(paddle.concat([interest, target], 1)), dense], 1)))


class MMoE(Base):
    """Experts, and one gate and one tower per task; both tasks predict the click here."""

    def __init__(self, sparse, experts=3, tasks=2):
        super().__init__(sparse)
        width = SLOTS * self.dim + DENSE
        self.experts = nn.LayerList([nn.Linear(width, 8) for _ in range(experts)])
        self.gates = nn.LayerList([nn.Linear(width, experts) for _ in range(tasks)])
        self.towers = nn.LayerList([nn.Linear(8, 1) for _ in range(tasks)])

    def forward(self, slots, dense):
        x = paddle.concat([*self.rows(slots), dense], axis=1)
        experts = paddle.stack([F.relu(expert(x)) for expert in self.experts], axis=1)
        outs = []
        for gate, tower in zip(self.gates, self.towers):
            mixed = paddle.einsum("be,bed->bd", F.softmax(gate(x), axis=1), experts)
            outs.append(F.sigmoid(tower(mixed)))
        return paddle.add_n(outs) / 2.0


MODELS = [DNN, WideDeep, DeepFM, DCN, FM, LR, DIN, MMoE]


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_rank_models_of_the_public_zoo_train(model, sparse):
    paddle.seed(11)
    slots = [paddle.static.data(name=f"C{i}", shape=[None, 1], dtype="int64") for i in range(SLOTS)]
    dense = paddle.static.data(name="dense_input", shape=[None, DENSE], dtype="float32")
    label = paddle.static.data(name="label", shape=[None, 1], dtype="int64")
    predict = model(sparse)(slots, dense)
    cost = F.log_loss(input=predict, label=paddle.cast(label, dtype="float32"))
    avg_cost = paddle.mean(x=cost)
    both = paddle.concat(x=[1 - predict, predict], axis=-1)
    auc, batch_auc, _ = paddle.static.auc(input=both, label=label, num_thresholds=2**12, slide_steps=20)
    paddle.optimizer.Adam(learning_rate=0.02, lazy_mode=True).minimize(avg_cost)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    rng, losses = np.random.default_rng(5), []
    for _ in range(60):
        ids = rng.integers(0, IDS, (SLOTS, 64, 1))
        feed = {f"C{i}": ids[i] for i in range(SLOTS)}
        feed["dense_input"] = rng.random((64, DENSE))
        feed["label"] = ids[0] % 2 | (ids[1] % 7 == 0)
        losses.append(exe.run(feed=feed, fetch_list=[avg_cost, batch_auc]))
    first, last = np.mean([loss for loss, _ in losses[:5]]), np.mean([loss for loss, _ in losses[-5:]])
    assert last < 0.9 * first, (first, last)
    assert losses[-1][1] > 0.7
    kinds = {v.kind for v in static.default_main_program().all_parameters()}
    assert ("table" in kinds) == sparse
