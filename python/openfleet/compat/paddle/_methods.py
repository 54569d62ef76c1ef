"""Tensor methods of PaddlePaddle for the variables of a program: `x.reshape(shape)` is `paddle.reshape(x, shape)`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from openfleet import static
from openfleet.compat._notices import say_once
from openfleet.static import Program, Variable, program
from openfleet.static.nn import _ops
from openfleet.static.optimizer import Optimizer

from . import _dynamic, _feeding, tensor
from .nn.layer import Layer

# Functions of `paddle.tensor` whose first argument is not the tensor.
_NOT_METHODS = {
    *("Tensor", "add_n", "arange", "assign", "concat", "einsum", "full", "normal", "ones", "rand", "randint", "randn"),
    *("shape", "stack", "to_tensor", "uniform", "where", "zeros"),
}
# Methods that change the tensor itself in dynamic mode. In a static program they return the result, as in PaddlePaddle.
_IN_PLACE = [
    "add_",
    "ceil_",
    "clip_",
    "exp_",
    "flatten_",
    "floor_",
    "reciprocal_",
    "reshape_",
    "round_",
    "rsqrt_",
    "scale_",
    "sqrt_",
    "squeeze_",
    "subtract_",
    "tanh_",
    "unsqueeze_",
]


def install() -> None:
    """Adds the methods to `Variable`. A name that the class has already stays as it is."""
    for name in tensor.__all__:
        if name not in _NOT_METHODS and name not in vars(Variable):
            setattr(Variable, name, getattr(tensor, name))
    for name in _IN_PLACE:
        setattr(Variable, name, _returning(name))
    Program.clone = _with_loaders(Program.clone)
    Program._fleet_opt = property(_fleet_opt, _set_fleet_opt)  # type: ignore[attr-defined]
    Program._pipeline_opt = Program._heter_pipeline_opt = None  # type: ignore[attr-defined]
    Variable.where = _where  # type: ignore[attr-defined]
    Variable.set_value = _set_value  # type: ignore[attr-defined]
    for name, instead in _dynamic.VARIABLE_CALLS.items():
        setattr(Variable, name, _dynamic.refusing(f"Tensor.{name}()", instead))
    for name, instead in _dynamic.OPTIMIZER_CALLS.items():
        setattr(Optimizer, name, _dynamic.refusing(f"optimizer.{name}()", instead))
    for name, instead in _dynamic.LAYER_CALLS.items():
        setattr(Layer, name, _dynamic.refusing(f"Layer.{name}()", instead))
    for name in ("float", "int"):
        setattr(Variable, f"__{name}__", _dynamic.refusing(f"{name}(Tensor)", _dynamic.FETCH))
    Variable.__format__ = _format
    Variable.grad = property(_dynamic.refusing("Tensor.grad", _dynamic.FETCH))  # type: ignore[attr-defined]
    Layer.__call__ = _called(Layer.__call__)
    program.not_a_variable = _dynamic.not_a_variable
    Variable.detach = _detach  # type: ignore[attr-defined]
    Variable.clone = _clone  # type: ignore[attr-defined]
    Variable.type = "lod_tensor"  # type: ignore[attr-defined]
    Variable.dim = lambda self: self.ndim  # type: ignore[attr-defined]
    Variable.size = property(_size)  # type: ignore[attr-defined]
    Variable.T = property(lambda self: tensor.transpose(self, list(range(self.ndim))[::-1]))  # type: ignore[attr-defined]


def _with_loaders(clone: Any) -> Any:
    @functools.wraps(clone)
    def method(self: Program, for_test: bool = False) -> Program:
        copy: Program = clone(self, for_test)
        _feeding.copies(self, copy)
        return copy

    return method


def _fleet_opt(self: Program) -> dict[str, Any]:
    """Settings of datasets by PaddlePaddle's names. Those for writing variables to files have no effect."""
    options: dict[str, Any] = self.__dict__.setdefault("_fleet_options", {})
    return options


def _set_fleet_opt(self: Program, options: dict[str, Any]) -> None:
    self.__dict__["_fleet_options"] = options


def _format(self: Variable, form: str) -> str:
    if form:
        _dynamic.refuse(f"format(Tensor, {form!r})", _dynamic.FETCH)
    return str(self)


def _called(call: Any) -> Any:
    @functools.wraps(call)
    def method(self: Layer, *inputs: Any, **kwargs: Any) -> Any:
        if _dynamic.called_with_arrays([*inputs, *kwargs.values()]):
            _dynamic.refuse(f"{type(self).__name__}(array)", _dynamic.FEED)
        return call(self, *inputs, **kwargs)

    return method


def _returning(name: str) -> Any:
    function = getattr(tensor, name[:-1])

    def method(self: Variable, *args: Any, **kwargs: Any) -> Variable:
        say_once(f"`Tensor.{name}` returns its result and leaves the tensor as it is: the program is static")
        return function(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, f"The same as `{name[:-1]}`: a static program changes no variable."
    return method


def _where(self: Variable, x: Any, y: Any) -> Variable:
    """Elements of x where this is true, else of y."""
    return tensor.where(self, x, y)


def _set_value(self: Variable, value: Any, scope: Any = None) -> None:
    """Sets the value of a parameter in the scope, after the startup program has run."""
    (scope or static.global_scope()).var(self.name).get_tensor().set(np.asarray(value))


def _detach(self: Variable) -> Variable:
    """Returns the same values, into which no gradient flows."""
    copy = tensor.assign(self)
    copy.stop_gradient = True
    return copy


def _clone(self: Variable) -> Variable:
    """Returns the same values, with gradients."""
    return tensor.assign(self)


def _size(self: Variable) -> Any:
    """The number of elements; -1 if it depends on the batch."""
    sizes = self.shape
    product = 1
    for size in sizes:
        product *= size
    return -1 if any(size < 0 for size in sizes) else product
