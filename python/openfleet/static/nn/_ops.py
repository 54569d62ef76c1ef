"""What the layers of this package share: adding one op to the current program, and reading shapes and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import _native
from .. import program
from ..program import Variable, _net, _net_of

net_of = _net_of
"""Returns the native net that a layer on these variables is added to."""

FUSED = ("relu", "sigmoid", "tanh")
"""Activations that `fc` computes together with its product."""

_ACTIVATIONS = ("relu", "sigmoid", "tanh", "softmax", "exp", "sqrt", "square", "abs", "log")


def variable(name: str) -> Variable:
    """Returns the variable with this name of the current main program."""
    return Variable(_net().main, name)


def unique_name(word: str) -> str:
    """Returns `word_N` with the next free N."""
    return _net().native.unique_name(word)


class SizeVariable(Variable):
    """One size of `shape(x)`, which can be used as a size of a new shape.

    >>> isinstance(static.nn.shape(static.data("x", [None, 6]))[0], static.nn.SizeVariable)
    True
    """

    known_size: int


def dims(shape: Sequence[Any] | Variable, batch_by_value: bool = False) -> list[int | str]:
    """Returns a shape as the engine reads it: the name of a variable stands for its value.

    The batch size `shape(x)[0]` is -1, or with `batch_by_value` the variable that has its value, for layers to which -1
    means something else.
    """
    if isinstance(shape, Variable):
        shape = [shape[i] for i in range(shape.shape[0])]
    return [_batch_or_size(size) if batch_by_value else size_of(size) for size in shape]


def _batch_or_size(size: Any) -> int | str:
    return size.name if isinstance(size, SizeVariable) and size.known_size < 0 else size_of(size)


def size_of(size: Any) -> int | str:
    """Returns one size of a shape as the engine reads it."""
    if isinstance(size, SizeVariable):
        return size.known_size
    if isinstance(size, Variable):
        if size.dtype != "int64":
            raise TypeError(f"a size expects an `int64` variable, got `{size.name}` of {size.dtype}")
        return size.name
    return -1 if size is None else int(size)


def axes(axis: int | Sequence[int] | None) -> list[int]:
    """Returns the axes as a list; an empty list means all of them."""
    if axis is None:
        return []
    return [int(axis)] if isinstance(axis, (int, np.integer)) else [int(a) for a in axis]


def dtype_name(dtype: Any) -> str:
    """Returns the dtype that a program uses for this one: `float32`, `int64` or `bool`; other names as they are."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    return {"float": "float32", "int": "int64", "int32": "int64", "float64": "float32"}.get(name, name)


def unary(op: str, x: Variable) -> Variable:
    """Adds an op with one input and no options."""
    return variable(net_of(x).unary(op, x.name))


def binary(op: str, x: Any, y: Any, axis: int = -1) -> Variable:
    """Adds an op with two inputs. A plain number becomes a constant in the shape of the other input."""
    if not isinstance(x, Variable):
        x = constant_like(y, x)
    if not isinstance(y, Variable):
        y = constant_like(x, y)
    if axis == -1 and op in ("add", "subtract", "multiply") and x.dtype == y.dtype == "int64":
        op = f"{op}_integers"
    return variable(net_of(x, y).binary(op, x.name, y.name, axis))


def constant_like(x: Any, value: Any) -> Variable:
    """Returns a number repeated in the shape of `x`, as `int64` where x is, otherwise as `float32`."""
    if not isinstance(x, Variable):
        # Called with two inputs of which neither is a variable.
        raise program.not_a_variable(value)
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"expected a Variable or a number, got {type(value).__name__}")
    return variable(net_of(x).fill_like(x.name, float(value), x.dtype == "int64"))


def activated(x: Variable, activation: str | None) -> Variable:
    """Returns an activation of `x`, by its name; x itself for None and `linear`."""
    if activation in (None, "linear"):
        return x
    if activation not in _ACTIVATIONS:
        hint = _native.nearest(str(activation), list(_ACTIVATIONS))
        raise ValueError(f"no activation is named `{activation}`\n\nhint: {hint}")
    if activation == "softmax":
        return variable(net_of(x).softmax(x.name, -1))
    return unary(str(activation), x)
