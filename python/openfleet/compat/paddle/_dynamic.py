"""PaddlePaddle's dynamic mode, which does not run here: its calls say so, and name the static form."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from openfleet.static import Variable

GUIDE = 'docs/guide/from-paddlepaddle.md, "Scripts in dynamic mode"'


class DynamicModeError(NotImplementedError, TypeError, AttributeError):
    """A call of the dynamic mode. It is each of the errors that Python itself would raise for it."""


def refuse(call: str, instead: str) -> NoReturn:
    """Raises NotImplementedError for a call of the dynamic mode."""
    raise error(call, instead)


def error(call: str, instead: str) -> DynamicModeError:
    """Returns the error for a call of the dynamic mode."""
    return DynamicModeError(
        f"`{call}` is a call of PaddlePaddle's dynamic mode; programs are static here\n\n"
        f"hint: {instead}; PaddleRec has a static trainer for each model (`tools/static_trainer.py`). See {GUIDE}"
    )


def refusing_function(call: str, instead: str) -> Any:
    """Returns a function that raises NotImplementedError."""

    def function(*args: Any, **kwargs: Any) -> NoReturn:
        refuse(call, instead)

    function.__name__ = call.rpartition(".")[2].removesuffix("()")
    function.__doc__ = f"Raises NotImplementedError: {instead}."
    return function


def is_array(value: Any) -> bool:
    """Returns whether a value is an array, or a list with one."""
    return isinstance(value, np.ndarray) or (isinstance(value, (list, tuple)) and any(map(is_array, value)))


def is_variable(value: Any) -> bool:
    """Returns whether a value is a variable, or a list with one."""
    return isinstance(value, Variable) or (isinstance(value, (list, tuple)) and any(map(is_variable, value)))


def refusing(call: str, instead: str) -> Any:
    """Returns a method that raises NotImplementedError."""

    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(call, instead)

    method.__name__ = call.rpartition(".")[2].removesuffix("()")
    method.__doc__ = f"Raises NotImplementedError: {instead}."
    return method


MINIMIZE = (
    "add the updates to the program once with `optimizer.minimize(loss)`, and train with `exe.run(program, feed=...)`"
)
FETCH = "values exist while a program runs: fetch them with `exe.run(program, feed=..., fetch_list=[variable])`"
SAVE = (
    "values are in the scope: save them with `paddle.static.save(program, path)`, or a program for prediction with "
    "`paddle.static.save_inference_model`"
)
LOAD = "values are in the scope: load them with `paddle.static.load(program, path)`"
FEED = (
    "declare the input with `x = paddle.static.data(name, shape, dtype)`, call the layer once with `x`, and give the "
    "arrays to `exe.run(program, feed={name: array})`"
)
JOB = (
    "one process trains one copy: use `fleet.distributed_optimizer(optimizer).minimize(loss)`, and start N processes "
    "with `fleetrun --worker_num=N`"
)
VARIABLE_CALLS = {
    "backward": MINIMIZE,
    "clear_grad": MINIMIZE,
    "clear_gradient": MINIMIZE,
    "gradient": FETCH,
    "numpy": FETCH,
    "item": FETCH,
    "tolist": FETCH,
}
OPTIMIZER_CALLS = {
    "step": MINIMIZE,
    "clear_grad": MINIMIZE,
    "clear_gradients": MINIMIZE,
    "state_dict": SAVE,
    "set_state_dict": LOAD,
    "set_dict": LOAD,
}
LAYER_CALLS = {
    "state_dict": SAVE,
    "to_static_state_dict": SAVE,
    "set_state_dict": LOAD,
    "set_dict": LOAD,
    "load_dict": LOAD,
}


grad = refusing_function(
    "paddle.grad()", "gradients are variables: `paddle.static.gradients(targets, inputs)`, fetched with `exe.run`"
)
save = refusing_function("paddle.save()", SAVE)
load = refusing_function("paddle.load()", LOAD)
set_grad_enabled = refusing_function(
    "paddle.set_grad_enabled()", "evaluate with a copy without updates, `program.clone(for_test=True)`"
)
distributed_model = refusing_function("fleet.distributed_model()", JOB)


class Model:
    """Raises NotImplementedError where it is created: there is no dynamic mode."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse("paddle.Model()", f"build the network and its loss once; {MINIMIZE}")


class DataParallel:
    """Raises NotImplementedError where it is created: there is no dynamic mode."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse("paddle.DataParallel()", JOB)


def called_with_arrays(inputs: Any) -> bool:
    """Returns whether the inputs of a layer are arrays, and none is a variable."""
    return any(map(is_array, inputs)) and not any(map(is_variable, inputs))


def not_a_variable(value: Any) -> TypeError:
    """The error for an input of an op that is not a variable."""
    if is_array(value):
        return error("a layer or function on an array", FEED)
    return TypeError(f"a layer expects a Variable, got {type(value).__name__}")
