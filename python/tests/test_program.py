import numpy as np
import pytest

from openfleet import static


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


def test_wrong_arguments_are_pythons_own_errors_with_our_words():
    x = static.data("x", [None, 3])
    with pytest.raises(ValueError, match="no activation is named `rlu`[^~]*did you mean `relu`"):
        static.nn.fc(x, size=2, activation="rlu")
    with pytest.raises(TypeError, match="expects a Variable, got list"):
        static.nn.relu([1.0])
    with pytest.raises(ValueError, match="exists already"):
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
