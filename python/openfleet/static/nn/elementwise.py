"""Arithmetic on each element.

Functions of two inputs take variables or plain numbers. The smaller input is broadcast: its dimensions are those of the
larger one from `axis` on, by default the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._deprecated import IGNORED, accepts_deprecated, only
from ..program import Variable
from ._ops import Selected, activated, binary, dtype_name, net_of, unary, variable


@accepts_deprecated(name=IGNORED)
def add(x: Any, y: Any, axis: int = -1) -> Variable:
    """Returns x + y; one of them may be a number, or smaller than the other.

    >>> x = static.nn.literal([[1.0, 2.0], [3.0, 4.0]])
    >>> exe.run(fetch_list=[static.nn.add(x, static.nn.literal([10.0, 20.0]))])[0].tolist()
    [[11.0, 22.0], [13.0, 24.0]]
    """
    return binary("add", x, y, axis)


@accepts_deprecated(name=IGNORED)
def subtract(x: Any, y: Any, axis: int = -1) -> Variable:
    """Returns x - y; one of them may be a number, or smaller than the other.

    >>> exe.run(fetch_list=[static.nn.subtract(1.0, static.nn.literal([1.0, 2.0]))])[0].tolist()
    [0.0, -1.0]
    """
    return binary("subtract", x, y, axis)


@accepts_deprecated(name=IGNORED)
def multiply(x: Any, y: Any, axis: int = -1) -> Variable:
    """Returns x * y, element by element; one of them may be a number, or smaller than the other.

    >>> x = static.nn.literal([2.0, 3.0])
    >>> exe.run(fetch_list=[static.nn.multiply(x, x)])[0].tolist()
    [4.0, 9.0]
    """
    return binary("multiply", x, y, axis)


@accepts_deprecated(name=IGNORED)
def divide(x: Any, y: Any, axis: int = -1) -> Variable:
    """Returns x / y; one of them may be a number, or smaller than the other.

    >>> exe.run(fetch_list=[static.nn.divide(static.nn.literal([1.0, 3.0]), 2.0)])[0].tolist()
    [0.5, 1.5]
    """
    return binary("divide", x, y, axis)


@accepts_deprecated(name=IGNORED)
def maximum(x: Any, y: Any, axis: int = -1) -> Variable:
    """Returns the larger of x and y, element by element.

    >>> exe.run(fetch_list=[static.nn.maximum(static.nn.literal([1.0, 3.0]), 2.0)])[0].tolist()
    [2.0, 3.0]
    """
    return binary("maximum", x, y, axis)


@accepts_deprecated(name=IGNORED)
def minimum(x: Any, y: Any, axis: int = -1) -> Variable:
    """Returns the smaller of x and y, element by element.

    >>> exe.run(fetch_list=[static.nn.minimum(static.nn.literal([1.0, 3.0]), 2.0)])[0].tolist()
    [1.0, 2.0]
    """
    return binary("minimum", x, y, axis)


@accepts_deprecated(name=IGNORED)
def add_n(inputs: Sequence[Variable]) -> Variable:
    """Returns the sum of several variables of one shape.

    >>> x = static.nn.literal([1.0, 2.0])
    >>> exe.run(fetch_list=[static.nn.add_n([x, x, x])])[0].tolist()
    [3.0, 6.0]
    """
    total = inputs[0]
    for x in inputs[1:]:
        total = add(total, x)
    return total


@accepts_deprecated(name=IGNORED)
def abs(x: Variable) -> Variable:
    """Returns the absolute value of each element.

    >>> exe.run(fetch_list=[static.nn.abs(static.nn.literal([-1.0, 2.0]))])[0].tolist()
    [1.0, 2.0]
    """
    return unary("abs", x)


@accepts_deprecated(name=IGNORED)
def exp(x: Variable) -> Variable:
    """Returns e to the power of each element.

    >>> exe.run(fetch_list=[static.nn.exp(static.nn.literal([0.0]))])[0].tolist()
    [1.0]
    """
    return unary("exp", x)


@accepts_deprecated(name=IGNORED)
def log(x: Variable) -> Variable:
    """Returns the natural logarithm of each element.

    >>> exe.run(fetch_list=[static.nn.log(static.nn.literal([1.0]))])[0].tolist()
    [0.0]
    """
    return unary("log", x)


@accepts_deprecated(name=IGNORED)
def sqrt(x: Variable) -> Variable:
    """Returns the square root of each element.

    >>> exe.run(fetch_list=[static.nn.sqrt(static.nn.literal([9.0, 16.0]))])[0].tolist()
    [3.0, 4.0]
    """
    return unary("sqrt", x)


@accepts_deprecated(name=IGNORED)
def square(x: Variable) -> Variable:
    """Returns each element times itself.

    >>> exe.run(fetch_list=[static.nn.square(static.nn.literal([3.0, -4.0]))])[0].tolist()
    [9.0, 16.0]
    """
    return unary("square", x)


@accepts_deprecated(name=IGNORED)
def pow(x: Variable, factor: float = 1.0) -> Variable:
    """Returns each element to the power of the constant `factor`.

    >>> exe.run(fetch_list=[static.nn.pow(static.nn.literal([2.0, 3.0]), 3.0)])[0].tolist()
    [8.0, 27.0]
    """
    if isinstance(x, Selected):
        return x.map(lambda elements: pow(elements, factor))
    return variable(net_of(x).pow(x.name, float(factor)))


@accepts_deprecated(name=IGNORED)
def scale(
    x: Variable, scale: float = 1.0, bias: float = 0.0, bias_after_scale: bool = True, act: str | None = None
) -> Variable:
    """Returns `scale * x + bias`, or `scale * (x + bias)` without `bias_after_scale`.

    `act` is an activation of the result, as for `fc`.

    >>> exe.run(fetch_list=[static.nn.scale(static.nn.literal([1.0, 2.0]), 10.0, bias=1.0)])[0].tolist()
    [11.0, 21.0]
    """
    factor = float(scale)

    def scaled(elements: Variable) -> Variable:
        y = net_of(elements).scale(elements.name, factor, float(bias), bias_after_scale)
        return activated(variable(y), act)

    return x.map(scaled) if isinstance(x, Selected) else scaled(x)


@accepts_deprecated(name=IGNORED)
def clip(x: Variable, min: float | None = None, max: float | None = None) -> Variable:
    """Limits each element to `[min, max]`; None is no limit.

    >>> exe.run(fetch_list=[static.nn.clip(static.nn.literal([-5.0, 0.5, 5.0]), -1.0, 1.0)])[0].tolist()
    [-1.0, 0.5, 1.0]
    """
    if isinstance(x, Selected):
        return x.map(lambda elements: clip(elements, min, max))
    bounds = np.finfo(np.float32)
    low, high = bounds.min if min is None else min, bounds.max if max is None else max
    return variable(net_of(x).clip(x.name, float(low), float(high)))


def cast(x: Variable, dtype: Any) -> Variable:
    """Converts each element to `float32`, `int64` or `bool`. Labels are read as integers and most losses take floats.

    >>> exe.run(fetch_list=[static.nn.cast(static.nn.literal([0, 1]), "float32")])[0].tolist()
    [0.0, 1.0]
    """
    if isinstance(x, Selected):
        return x.map(lambda elements: cast(elements, dtype))
    if dtype_name(dtype) == x.dtype:
        return x
    return variable(net_of(x).cast(x.name, dtype_name(dtype)))


@accepts_deprecated(
    output=only(
        None,
        "use the returned variable",
        lambda value: NotImplementedError("`output` of `assign`: use the variable that it returns"),
    )
)
def assign(x: Variable) -> Variable:
    """Returns a copy of x.

    >>> exe.run(fetch_list=[static.nn.assign(static.nn.literal([1.0, 2.0]))])[0].tolist()
    [1.0, 2.0]
    """
    return unary("assign", x)
