"""What the layers of this package share: adding one op to the current program, and reading shapes and dtypes.

The layers on the elements that `masked_select` selects are here too, because every elementwise layer has to know them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import _native
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

    size: int


def dims(shape: Sequence[Any]) -> list[int]:
    """Returns a shape as integers, with -1 for the batch."""
    return [-1 if size is None else size.size if isinstance(size, SizeVariable) else int(size) for size in shape]


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
    if isinstance(x, Selected):
        return x.mean() if op == "mean" else x.map(lambda elements: unary(op, elements))
    return variable(net_of(x).unary(op, x.name))


def binary(op: str, x: Any, y: Any, axis: int = -1) -> Variable:
    """Adds an op with two inputs. A plain number becomes a constant in the shape of the other input."""
    if isinstance(x, Selected) or isinstance(y, Selected):
        return Selected.combine(lambda a, b: binary(op, a, b), x, y)
    if not isinstance(x, Variable):
        x = constant_like(y, x)
    if not isinstance(y, Variable):
        y = constant_like(x, y)
    return variable(net_of(x, y).binary(op, x.name, y.name, axis))


def constant_like(x: Any, value: Any) -> Variable:
    """Returns a number repeated in the shape of `x`, as `int64` where x is, otherwise as `float32`."""
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"expected a Variable or a number, got {type(value).__name__}")
    if not isinstance(x, Variable):
        raise TypeError(f"expected a Variable, got {type(x).__name__}")
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


class Selected(Variable):
    """The result of `masked_select`: all elements, and the mask that selects some of them.

    A program cannot know how many elements are selected, so this is not a variable with a fixed shape. Elementwise
    layers work on it; `sum` and `mean` reduce the selected elements only.

    >>> x = static.data("x", [None, 2])
    >>> static.nn.mean(static.nn.masked_select(x, static.nn.greater_than(x, x * 0.0))).shape
    (1,)
    """

    def __init__(self, elements: Variable, mask: Variable) -> None:
        self.program, self._elements, self._mask = elements.program, elements, mask

    @property
    def name(self) -> str:  # type: ignore[override]
        raise NotImplementedError(
            "the result of `masked_select` has as many elements as its mask has true values, which a program cannot "
            "know\n\nhint: take its `sum` or `mean`, or use `where` on all elements"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """`(-1,)`: any number of elements."""
        return (-1,)

    @property
    def dtype(self) -> str:
        """The dtype of the elements."""
        return self._elements.dtype

    def map(self, layer: Callable[[Variable], Variable]) -> Selected:
        """Applies an elementwise layer to all elements and keeps the selection."""
        return Selected(layer(self._elements), self._mask)

    @staticmethod
    def combine(layer: Callable[[Any, Any], Variable], x: Any, y: Any) -> Selected:
        """Applies an elementwise layer to two selections by the same mask, or to a selection and a number."""
        mask = x._mask if isinstance(x, Selected) else y._mask
        for one in (x, y):
            selected = isinstance(one, Selected)
            if (selected and one._mask.name != mask.name) or (isinstance(one, Variable) and not selected):
                raise NotImplementedError("layers on `masked_select` of two masks: select both with the same one")
        parts = [one._elements if isinstance(one, Selected) else one for one in (x, y)]
        return Selected(layer(*parts), mask)

    def sum(self) -> Variable:
        """Returns the sum of the selected elements, [1]."""
        zeros = constant_like(self._elements, 0)
        net = net_of(self._mask, self._elements, zeros)
        kept = net.select(self._mask.name, self._elements.name, zeros.name)
        return variable(net.reduce("sum", kept, [], False))

    def mean(self) -> Variable:
        """Returns the mean of the selected elements, [1]; NaN where no element is selected."""
        net = net_of(self._mask)
        count = net.reduce("sum", net.cast(self._mask.name, "float32"), [], False)
        return binary("divide", self.sum(), variable(count))
