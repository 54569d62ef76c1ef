"""A script in PaddlePaddle's dynamic mode: its first dynamic call names the static form that runs here."""

import subprocess
import sys

import numpy as np
import pytest

import openfleet.compat.paddle as paddle
from openfleet import static

F = paddle.nn.functional
ROWS = np.ones((2, 4), "float32")
CLASSES = np.zeros((2, 1), "int64")


def _layer():
    return paddle.nn.Linear(4, 2)


def _number():
    return paddle.mean(paddle.static.data("x", [None, 4]))


# What a script calls, and a part of the static form that the hint names.
CALLS = {
    "Linear(array)": (lambda: _layer()(ROWS), "paddle.static.data(name, shape, dtype)"),
    "a layer or function on an array": (lambda: F.relu(ROWS), "paddle.static.data(name, shape, dtype)"),
    "Tensor.backward()": (lambda: _number().backward(), "optimizer.minimize(loss)"),
    "Tensor.numpy()": (lambda: _number().numpy(), "fetch_list=[variable]"),
    "Tensor.grad": (lambda: _number().grad, "fetch_list=[variable]"),
    "float(Tensor)": (lambda: float(_number()), "fetch_list=[variable]"),
    "int(Tensor)": (lambda: int(_number()), "fetch_list=[variable]"),
    "format(Tensor, '.4f')": (lambda: f"{_number():.4f}", "fetch_list=[variable]"),
    "optimizer.step()": (lambda: paddle.optimizer.SGD().step(), "optimizer.minimize(loss)"),
    "optimizer.clear_grad()": (lambda: paddle.optimizer.SGD().clear_grad(), "optimizer.minimize(loss)"),
    "optimizer.state_dict()": (lambda: paddle.optimizer.SGD().state_dict(), "paddle.static.save(program, path)"),
    "Layer.state_dict()": (lambda: _layer().state_dict(), "paddle.static.save(program, path)"),
    "Layer.set_state_dict()": (lambda: _layer().set_state_dict({}), "paddle.static.load(program, path)"),
    "Layer.set_dict()": (lambda: _layer().set_dict({}), "paddle.static.load(program, path)"),
    "paddle.grad()": (lambda: paddle.grad(_number(), []), "paddle.static.gradients(targets, inputs)"),
    "paddle.save()": (lambda: paddle.save({}, "model"), "paddle.static.save(program, path)"),
    "paddle.load()": (lambda: paddle.load("model"), "paddle.static.load(program, path)"),
    "paddle.Model()": (lambda: paddle.Model(_layer()), "optimizer.minimize(loss)"),
    "paddle.DataParallel()": (lambda: paddle.DataParallel(_layer()), "fleetrun --worker_num=N"),
    "fleet.distributed_model()": (lambda: paddle.distributed.fleet.distributed_model(_layer()), "fleetrun"),
    "paddle.set_grad_enabled()": (lambda: paddle.set_grad_enabled(False), "program.clone(for_test=True)"),
    "paddle.jit.to_static(layer)": (lambda: paddle.jit.to_static(_layer()), "paddle.static.data"),
    "paddle.jit.save()": (lambda: paddle.jit.save(_layer(), "model"), "paddle.static.save_inference_model"),
    "paddle.jit.load()": (lambda: paddle.jit.load("model"), "paddle.static.load_inference_model(path, exe)"),
    "paddle.disable_static()": (lambda: paddle.disable_static(), "paddle.enable_static()"),
    "paddle.fluid.dygraph.guard()": (lambda: paddle.fluid.dygraph.guard(), "optimizer.minimize(loss)"),
    "paddle.fluid.dygraph.to_variable()": (lambda: paddle.fluid.dygraph.to_variable(ROWS), "paddle.static.data"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_dynamic_call_names_itself_the_static_form_and_the_guide(call):
    use, instead = CALLS[call]
    with pytest.raises(NotImplementedError) as raised:
        use()
    said = str(raised.value)
    assert said.startswith(f"`{call}` is a call of PaddlePaddle's dynamic mode") and instead in said
    assert said.endswith('See docs/guide/from-paddlepaddle.md, "Scripts in dynamic mode"')


FUNCTIONS = {
    "paddle.add": lambda: paddle.add(ROWS, ROWS),
    "paddle.cast": lambda: paddle.cast(ROWS, "int64"),
    "paddle.concat": lambda: paddle.concat([ROWS, ROWS], axis=1),
    "paddle.matmul": lambda: paddle.matmul(ROWS, ROWS),
    "paddle.mean": lambda: paddle.mean(ROWS),
    "paddle.reshape": lambda: paddle.reshape(ROWS, [-1]),
    "paddle.split": lambda: paddle.split(ROWS, 2, axis=1),
    "paddle.squeeze": lambda: paddle.squeeze(ROWS),
    "paddle.stack": lambda: paddle.stack([ROWS, ROWS]),
    "paddle.sum": lambda: paddle.sum(ROWS),
    "paddle.topk": lambda: paddle.topk(ROWS, 1),
    "paddle.transpose": lambda: paddle.transpose(ROWS, [1, 0]),
    "paddle.unsqueeze": lambda: paddle.unsqueeze(ROWS, 0),
    "F.binary_cross_entropy": lambda: F.binary_cross_entropy(ROWS, ROWS),
    "F.cross_entropy": lambda: F.cross_entropy(ROWS, CLASSES),
    "F.dropout": lambda: F.dropout(ROWS),
    "F.log_loss": lambda: F.log_loss(ROWS, ROWS),
    "F.sigmoid": lambda: F.sigmoid(ROWS),
    "F.softmax": lambda: F.softmax(ROWS),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_arrays_is_a_dynamic_call(name):
    with pytest.raises(NotImplementedError, match=r"dynamic mode.*\n\nhint: declare the input with"):
        FUNCTIONS[name]()


def test_an_attribute_of_the_dynamic_mode_can_be_asked_for():
    assert not hasattr(_number(), "grad")


def test_a_layer_may_take_an_array_beside_its_variables():
    class Scaled(paddle.nn.Layer):
        def forward(self, x, factors):
            return x * paddle.to_tensor(factors)

    y = Scaled()(paddle.static.data("x", [None, 4]), np.arange(4, dtype="float32"))
    assert static.Executor().run(feed={"x": ROWS}, fetch_list=[y])[0].tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2


def test_no_grad_has_no_effect_in_a_static_program():
    @paddle.no_grad()
    def first(x, times=2):
        return x * times

    @paddle.no_grad
    def second(x):
        return x + 1

    with paddle.no_grad():
        assert first(3) == 6 and first(3, times=3) == 9 and second(3) == 4
    assert first.__name__ == "first"


def test_a_function_is_static_already():
    @paddle.jit.to_static
    def first(x):
        return x + 1

    @paddle.jit.to_static(input_spec=[paddle.static.InputSpec([None, 4])])
    def second(x):
        return first(x)

    assert second(1) == 2 and paddle.jit.not_to_static(first)(1) == 2


def test_the_arrays_of_a_loader_are_made_into_arrays_as_tensors_are():
    rows = paddle.io.TensorDataset([ROWS, CLASSES])
    for batch in paddle.io.DataLoader(rows, batch_size=2):
        assert type(batch[0].numpy()) is np.ndarray and batch[1].numpy().astype("int32").shape == (2, 1)
        x = paddle.static.data("x", [None, 4])
        assert float(static.Executor().run(feed={"x": batch[0]}, fetch_list=[paddle.sum(x)])[0]) == 8.0


SCRIPT = """
import numpy as np
import paddle


class Rows(paddle.io.Dataset):
    def __getitem__(self, index):
        return np.full(4, index, "float32"), np.array([index % 2])

    def __len__(self):
        return 8


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x)


net = Net()
optimizer = paddle.optimizer.Adam(learning_rate=0.01, parameters=net.parameters())
net.train()
for x, label in paddle.io.DataLoader(Rows(), batch_size=4):
    PREPARE
    loss = paddle.nn.functional.cross_entropy(net(x), label)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
"""


@pytest.mark.parametrize(
    ("prepare", "call"),
    [
        ("pass", "Net(array)"),
        ("x, label = paddle.to_tensor(x.numpy()), paddle.to_tensor(label)", "Tensor.backward()"),
    ],
)
def test_a_dynamic_script_ends_with_the_form_that_runs(tmp_path, prepare, call):
    (tmp_path / "train.py").write_text(SCRIPT.replace("PREPARE", prepare))
    command = [sys.executable, "-m", "openfleet.compat", "train.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and f"`{call}` is a call of PaddlePaddle's dynamic mode" in run.stderr, run.stderr
    assert "hint: " in run.stderr and "Scripts in dynamic mode" in run.stderr
