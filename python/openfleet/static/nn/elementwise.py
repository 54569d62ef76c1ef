"""Arithmetic on each element.

Functions of two inputs take variables or plain numbers. The smaller input is broadcast: its dimensions are those of the
larger one from `axis` on, by default the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._deprecated import IGNORED, accepts_deprecated
from ..program import Variable
from ._ops import activated, binary, dtype_name, net_of, unary, variable


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
    return activated(variable(net_of(x).scale(x.name, float(scale), float(bias), bias_after_scale)), act)


@accepts_deprecated(name=IGNORED)
def clip(x: Variable, min: float | None = None, max: float | None = None) -> Variable:
    """Limits each element to `[min, max]`; None is no limit.

    >>> exe.run(fetch_list=[static.nn.clip(static.nn.literal([-5.0, 0.5, 5.0]), -1.0, 1.0)])[0].tolist()
    [-1.0, 0.5, 1.0]
    """
    bounds = np.finfo(np.float32)
    low, high = bounds.min if min is None else min, bounds.max if max is None else max
    return variable(net_of(x).clip(x.name, float(low), float(high)))


def cast(x: Variable, dtype: Any) -> Variable:
    """Converts each element to `float32`, `int64` or `bool`. Labels are read as integers and most losses take floats.
    Of a slot (`lod_level=1`) returns the ids of all rows, [N, 1].

    >>> exe.run(fetch_list=[static.nn.cast(static.nn.literal([0, 1]), "float32")])[0].tolist()
    [0.0, 1.0]
    """
    net = net_of(x)
    if x.lod_level:
        x = unary("slot_ids", x)
    if dtype_name(dtype) == x.dtype:
        return x
    return variable(net.cast(x.name, dtype_name(dtype)))


def assign(x: Variable, output: Variable | None = None) -> Variable:
    """Returns a copy of x. With `output`, a variable of `create_global_var`, also sets that one.

    Raises:
        ValueError: `output` is another kind of variable.

    >>> exe.run(fetch_list=[static.nn.assign(static.nn.literal([1.0, 2.0]))])[0].tolist()
    [1.0, 2.0]
    """
    if output is None:
        return unary("assign", x)
    if output.kind != "state":
        raise ValueError(
            f"`output` of `assign` expects a variable of `create_global_var`, got `{output.name}`, a {output.kind}\n\n"
            "hint: use the variable that `assign` returns"
        )
    return binary("write_state", x, output)


def floor(x: Variable) -> Variable:
    """Returns the greatest integer that is not above x, as a float. No gradient flows through it.

    >>> exe.run(fetch_list=[static.nn.floor(static.nn.literal([1.5, -1.5]))])[0].tolist()
    [1.0, -2.0]
    """
    return unary("floor", x)


def ceil(x: Variable) -> Variable:
    """Returns the least integer that is not below x, as a float. No gradient flows through it.

    >>> exe.run(fetch_list=[static.nn.ceil(static.nn.literal([1.5, -1.5]))])[0].tolist()
    [2.0, -1.0]
    """
    return unary("ceil", x)


def round(x: Variable) -> Variable:
    """Returns the nearest integer as a float; halves go away from 0. No gradient flows through it.

    >>> exe.run(fetch_list=[static.nn.round(static.nn.literal([1.4, -1.5]))])[0].tolist()
    [1.0, -2.0]
    """
    return unary("round", x)


def sign(x: Variable) -> Variable:
    """Returns -1, 0 or 1. No gradient flows through it.

    >>> exe.run(fetch_list=[static.nn.sign(static.nn.literal([1.5, 0.0, -1.5]))])[0].tolist()
    [1.0, 0.0, -1.0]
    """
    return unary("sign", x)


def sin(x: Variable) -> Variable:
    """Returns the sine of x.

    >>> exe.run(fetch_list=[static.nn.sin(static.nn.literal([0.0]))])[0].tolist()
    [0.0]
    """
    return unary("sin", x)


def cos(x: Variable) -> Variable:
    """Returns the cosine of x.

    >>> exe.run(fetch_list=[static.nn.cos(static.nn.literal([0.0]))])[0].tolist()
    [1.0]
    """
    return unary("cos", x)


def log1p(x: Variable) -> Variable:
    """Returns log(1 + x), exact near 0.

    >>> exe.run(fetch_list=[static.nn.log1p(static.nn.literal([0.0]))])[0].tolist()
    [0.0]
    """
    return unary("log1p", x)


def erf(x: Variable) -> Variable:
    """Returns the error function of x.

    >>> exe.run(fetch_list=[static.nn.erf(static.nn.literal([0.0]))])[0].tolist()
    [0.0]
    """
    return unary("erf", x)


def bitwise_and(x: Any, y: Any) -> Variable:
    """Returns the bits that both of two `int64` variables have; one may be a number.

    >>> exe.run(fetch_list=[static.nn.bitwise_and(static.nn.literal([6, 5]), 4)])[0].tolist()
    [4, 4]
    """
    return binary("bitwise_and", x, y)


def bitwise_or(x: Any, y: Any) -> Variable:
    """Returns the bits that one or both of two `int64` variables have; one may be a number.

    >>> exe.run(fetch_list=[static.nn.bitwise_or(static.nn.literal([6, 5]), 1)])[0].tolist()
    [7, 5]
    """
    return binary("bitwise_or", x, y)


def bitwise_xor(x: Any, y: Any) -> Variable:
    """Returns the bits that exactly one of two `int64` variables has; one may be a number.

    >>> exe.run(fetch_list=[static.nn.bitwise_xor(static.nn.literal([6, 5]), 7)])[0].tolist()
    [1, 2]
    """
    return binary("bitwise_xor", x, y)


def floor_divide(x: Any, y: Any) -> Variable:
    """Returns x / y of `int64` variables, rounded down; one may be a number.

    Raises:
        ValueError: While the program runs, if an element of y is 0.

    >>> exe.run(fetch_list=[static.nn.floor_divide(static.nn.literal([7, -7]), 2)])[0].tolist()
    [3, -4]
    """
    return binary("floor_divide", x, y)


def modulo(x: Any, y: Any) -> Variable:
    """Returns the remainder of `floor_divide`, which has the sign of y.

    Raises:
        ValueError: While the program runs, if an element of y is 0.

    >>> exe.run(fetch_list=[static.nn.modulo(static.nn.literal([7, -7]), 4)])[0].tolist()
    [3, 1]
    """
    return binary("modulo", x, y)
