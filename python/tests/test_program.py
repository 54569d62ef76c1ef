import math

import numpy as np
import pytest

from openfleet import static
from openfleet.static.optimizer import lr


def run(fetch, feed=None):
    exe = static.Executor()
    exe.run(static.default_startup_program())
    return exe.run(feed=feed or {}, fetch_list=fetch)


def test_operators_on_variables_compute_what_numpy_computes():
    x, y = static.data("x", [None, 3]), static.data("y", [None, 3])
    a, b = np.array([[1.0, -2.0, 3.0]], "float32"), np.array([[4.0, 5.0, -6.0]], "float32")
    cases = [
        (x + y, a + b),
        (x - 1, a - 1),
        (2 - x, 2 - a),
        (x * y, a * b),
        (3.0 * x, 3 * a),
        (x / y, a / b),
        (x / 2, a / 2),
        (1 / x, 1 / a),
        (-x, -a),
        (x**2, a**2),
        (x < y, a < b),
        (x >= 1.0, a >= 1),
        (x == y, a == b),
        (x[:, 1:], a[:, 1:]),
        (x[:, -1], a[:, -1]),
    ]
    values = run([variable for variable, _ in cases], {"x": a, "y": b})
    for (variable, expected), value in zip(cases, values):
        assert value.dtype == expected.dtype, variable
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_matmul_and_free_parameters():
    x = static.data("x", [None, 2])
    ones = static.initializer.Constant(1.0)
    w = static.create_parameter([2, 3], attr=static.ParamAttr(name="w", initializer=ones))
    (value,) = run([x @ w], {"x": [[1.0, 2.0]]})
    assert value.tolist() == [[3.0, 3.0, 3.0]]


def test_a_second_network_under_a_name_guard_shares_the_parameters_of_the_first():
    def network():
        return static.nn.fc(static.data("x", [None, 2]), size=1)

    with static.unique_name.guard():
        y = network()
    (first,) = run([y], {"x": [[1.0, 2.0]]})
    test = static.Program()
    with static.program_guard(test, static.Program()), static.unique_name.guard():
        y = network()
    (second,) = static.Executor().run(test, feed={"x": [[1.0, 2.0]]}, fetch_list=[y])
    assert first.tolist() == second.tolist()


def test_a_test_copy_does_not_train():
    x = static.data("x", [None, 1])
    loss = static.nn.mean(static.nn.square(static.nn.fc(x, size=1)))
    test = static.default_main_program().clone(for_test=True)
    static.optimizer.SGD(0.1).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    before = exe.run(test, feed={"x": [[1.0]]}, fetch_list=[loss])[0]
    assert exe.run(test, feed={"x": [[1.0]]}, fetch_list=[loss])[0] == before
    exe.run(feed={"x": [[1.0]]}, fetch_list=[loss])
    assert exe.run(test, feed={"x": [[1.0]]}, fetch_list=[loss])[0] < before


def test_a_variable_of_another_program_is_refused_with_a_hint():
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [None, 1])
    with pytest.raises(ValueError, match="another program[^~]*hint: .*program_guard"):
        static.nn.relu(x)


def test_wrong_arguments_raise_builtin_exceptions_with_our_messages():
    x = static.data("x", [None, 3])
    with pytest.raises(ValueError, match="no activation is named `rlu`[^~]*did you mean `relu`"):
        static.nn.fc(x, size=2, activation="rlu")
    with pytest.raises(TypeError, match="expects a Variable, got list"):
        static.nn.relu([1.0])
    with pytest.raises(ValueError, match="already exists"):
        static.data("x", [None, 3])
    with pytest.raises(ValueError, match="must be a single float[^~]*hint: take the `mean`"):
        static.optimizer.SGD(0.1).minimize(static.nn.fc(x, size=2))
    with pytest.raises(TypeError, match="where"):
        if x > 1:
            pass


def test_gradients_can_be_fetched():
    x = static.data("x", [None, 1])
    w = static.create_parameter([1, 1], attr=static.ParamAttr(name="w", initializer=static.initializer.Constant(3.0)))
    loss = static.nn.mean(static.nn.square(x @ w))
    ((parameter, gradient),) = static.append_backward(loss)
    assert parameter.name == "w"
    (value,) = run([gradient], {"x": [[2.0]]})
    assert value.tolist() == [[2 * 2.0 * 2.0 * 3.0]]  # d/dw (x w)^2 = 2 x^2 w


def test_dropout_in_a_test_copy_keeps_everything():
    y = static.nn.dropout(static.data("x", [None, 100]), p=0.5)
    test = static.default_main_program().clone(for_test=True)
    ones = np.ones((1, 100), "float32")
    exe = static.Executor()
    assert (exe.run(test, feed={"x": ones}, fetch_list=[y])[0] == 1).all()
    trained = exe.run(feed={"x": ones}, fetch_list=[y])[0]
    assert set(trained.ravel().tolist()) == {0.0, 2.0}


def test_schedules_and_clipping_reach_the_engine():
    x = static.data("x", [None, 1])
    w = static.create_parameter([1, 1], attr=static.ParamAttr(name="w", initializer=static.initializer.Constant(0.0)))
    rate = static.optimizer.lr.PiecewiseDecay([1], [0.5, 0.25])
    clip = static.clip.ClipGradByValue(1.0)
    static.optimizer.SGD(rate, grad_clip=clip).minimize(static.nn.mean(x @ w))
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for expected in (-0.5, -0.75):  # a gradient of 10, clipped to 1
        exe.run(feed={"x": [[10.0]]})
        assert np.array(static.global_scope().find_var("w").get_tensor()).item() == pytest.approx(expected)


def steps_of(optimizer, count, x=1.0, **attr):
    """How far a weight moves at each step under a gradient of `x`."""
    with static.program_guard(static.Program(), static.Program()), static.scope_guard(static.Scope()):
        first = static.initializer.Constant(1.0)
        weight = static.create_parameter([1, 1], attr=static.ParamAttr(name="w", initializer=first, **attr))
        optimizer.minimize(static.nn.mean(static.data("x", [None, 1]) @ weight))
        exe = static.Executor()
        exe.run(static.default_startup_program())
        values = [1.0]
        for _ in range(count):
            exe.run(feed={"x": [[x]]})
            values.append(static.global_scope().find_var("w").get_tensor()[0, 0].item())
    return [before - after for before, after in zip(values, values[1:])]


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        (lr.ExponentialDecay(0.1, gamma=0.5), lambda t: 0.1 * 0.5**t),
        (lr.NaturalExpDecay(0.1, gamma=0.5), lambda t: 0.1 * math.exp(-0.5 * t)),
        (lr.InverseTimeDecay(0.1, gamma=0.5), lambda t: 0.1 / (1 + 0.5 * t)),
        (lr.PolynomialDecay(0.1, decay_steps=4, end_lr=0.02), lambda t: (0.1 - 0.02) * (1 - min(t, 4) / 4) + 0.02),
        (lr.PiecewiseDecay([2, 3], [0.1, 0.05, 0.01]), lambda t: [0.1, 0.1, 0.05, 0.01, 0.01, 0.01][t]),
        (lr.CosineDecay(0.1, step_each_epoch=2, epochs=4), lambda t: 0.05 * (math.cos(t // 2 * math.pi / 4) + 1)),
        (lr.LinearWarmup(0.1, warmup_steps=4, start_lr=0.0, end_lr=0.1), lambda t: 0.1 * min(t / 4, 1)),
    ],
)
def test_a_weight_moves_by_the_rate_of_its_schedule(schedule, rate):
    found = steps_of(static.optimizer.SGD(schedule), 6)
    assert found == pytest.approx([rate(t) for t in range(6)], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "attr", "expected"),
    [
        ({}, {"learning_rate": 0.5}, 0.1 * 0.5 * 3),
        ({}, {"trainable": False}, 0.0),
        ({}, {"regularizer": static.regularizer.L2Decay(0.5)}, 0.1 * (3 + 0.5 * 1.0)),
        ({}, {"regularizer": static.regularizer.L1Decay(0.5)}, 0.1 * (3 + 0.5)),
        ({"weight_decay": 0.25}, {}, 0.1 * (3 + 0.25)),
        # A parameter's own regularizer takes the place of the optimizer's.
        ({"weight_decay": 0.25}, {"regularizer": static.regularizer.L2Decay(0.5)}, 0.1 * (3 + 0.5)),
        ({"grad_clip": static.clip.ClipGradByValue(2.0)}, {}, 0.1 * 2),
        ({"grad_clip": static.clip.ClipGradByNorm(1.5)}, {}, 0.1 * 1.5),
        ({"grad_clip": static.clip.ClipGradByGlobalNorm(0.5)}, {}, 0.1 * 0.5),
    ],
)
def test_attributes_decay_and_clipping_change_a_step_by_their_formulas(options, attr, expected):
    if attr.get("trainable") is False:
        with pytest.raises(ValueError):
            steps_of(static.optimizer.SGD(0.1, **options), 1, x=3.0, **attr)
        return
    assert steps_of(static.optimizer.SGD(0.1, **options), 1, x=3.0, **attr)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("initializer", "spread"),
    [
        (static.initializer.Constant(0.25), 0.0),
        (static.initializer.Uniform(-0.3, 0.3), 0.3 / math.sqrt(3)),
        (static.initializer.Normal(0.0, 0.2), 0.2),
        (static.initializer.TruncatedNormal(0.0, 0.2), 0.2 * 0.8796),  # of a normal cut at two standard deviations
        (static.initializer.XavierUniform(), math.sqrt(2 / 200)),
        (static.initializer.XavierNormal(), math.sqrt(2 / 200)),
        (static.initializer.KaimingUniform(), math.sqrt(2 / 100)),
        (static.initializer.KaimingNormal(), math.sqrt(2 / 100)),
    ],
)
def test_first_values_have_the_spread_of_their_initializer(initializer, spread):
    attr = static.ParamAttr(name="w", initializer=initializer)
    static.create_parameter([100, 100], attr=attr)
    static.Executor().run(static.default_startup_program())
    values = static.global_scope().find_var("w").get_tensor().numpy()
    assert values.std() == pytest.approx(spread, rel=0.05, abs=1e-6)


def test_a_tensor_of_a_scope_reads_and_writes_the_current_value():
    y = static.nn.fc(static.data("x", [None, 2]), size=1, weight_attr="w", bias_attr=False)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    tensor = static.global_scope().find_var("w").get_tensor()
    tensor.set([[1.0], [2.0]])
    other = static.global_scope().find_var("w").get_tensor()
    other[1] = 5.0
    assert tensor[1, 0] == 5.0 and tensor.dtype == np.float32 and len(tensor) == 2
    assert exe.run(feed={"x": [[1.0, 1.0]]}, fetch_list=[y])[0].item() == 6.0
    np.testing.assert_array_equal(tensor * 2 - 1, [[1.0], [9.0]])
