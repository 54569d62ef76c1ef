"""`paddle.tensor`: functions on variables, with PaddlePaddle's argument names and defaults.

Functions that differ from `openfleet.static.nn` are defined here; the others are re-exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from openfleet import compat
from openfleet.static import nn as _nn
from openfleet.static.nn._ops import dtype_name as _dtype_name
from openfleet.static.program import Variable

from ._layers import (
    abs,
    add,
    add_n,
    bmm,
    cast,
    clip,
    concat,
    divide,
    equal,
    exp,
    expand,
    full_like,
    gather,
    greater_equal,
    greater_than,
    less_equal,
    less_than,
    log,
    logical_and,
    logical_not,
    logical_or,
    masked_select,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    multiply,
    not_equal,
    ones_like,
    reshape,
    scale,
    shape,
    slice,
    split,
    sqrt,
    square,
    squeeze,
    stack,
    subtract,
    sum,
    tanh,
    topk,
    transpose,
    tril,
    triu,
    unsqueeze,
    zeros_like,
)

Tensor = Variable


def assign(x: Any, output: Variable | None = None) -> Variable:
    """A copy of a variable, or given numbers."""
    if output is not None:
        raise NotImplementedError("`output` of `paddle.assign`: use what it returns")
    return _nn.assign(x) if isinstance(x, Variable) else _nn.literal(x)


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Variable:
    """Given numbers; Python's floats are float32."""
    if isinstance(data, Variable):
        raise TypeError("`paddle.to_tensor` expects numbers, got a Variable: use `paddle.assign`")
    if not stop_gradient:
        raise NotImplementedError("`stop_gradient=False` of `paddle.to_tensor`: use `paddle.create_parameter`")
    return _nn.literal(data, dtype)


def arange(start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, name: str | None = None) -> Variable:
    """Numbers from `start` to before `end`."""
    for what, value in (("start", start), ("end", end), ("step", step)):
        if isinstance(value, Variable):
            raise NotImplementedError(f"`{what}` of `paddle.arange` as a Variable: say a number")
    return _nn.literal(np.arange(start, step=step) if end is None else np.arange(start, end, step), dtype)


def full(shape: Sequence[Any], fill_value: float, dtype: Any = None, name: str | None = None) -> Variable:
    """One number everywhere."""
    return _filled(shape, fill_value, "float32" if dtype is None else dtype)


def ones(shape: Sequence[Any], dtype: Any = None, name: str | None = None) -> Variable:
    """Ones."""
    return full(shape, 1.0, dtype)


def zeros(shape: Sequence[Any], dtype: Any = None, name: str | None = None) -> Variable:
    """Zeros."""
    return full(shape, 0.0, dtype)


def _filled(shape: Sequence[Any], value: float, dtype: Any) -> Variable:
    if _dtype_name(dtype) == "bool":
        return _nn.cast(_nn.full(shape, float(value != 0)), "bool")
    return _nn.full(shape, value, dtype)


def _float_only(what: str, dtype: Any) -> None:
    if dtype is not None and _dtype_name(dtype) != "float32":
        raise NotImplementedError(f"`dtype` `{dtype}` of `{what}`: random numbers are `float32`")


def rand(shape: Sequence[Any], dtype: Any = None, name: str | None = None) -> Variable:
    """Random floats in `[0, 1)`, new ones in every step."""
    _float_only("paddle.rand", dtype)
    return _nn.uniform(shape, 0.0, 1.0)


def uniform(
    shape: Sequence[Any], dtype: Any = None, min: float = -1.0, max: float = 1.0, seed: int = 0, name: str | None = None
) -> Variable:
    """Random floats in `[min, max)`, new ones in every step unless there is a seed."""
    _float_only("paddle.uniform", dtype)
    return _nn.uniform(shape, min, max, seed or None)


def randn(shape: Sequence[Any], dtype: Any = None, name: str | None = None) -> Variable:
    """Random floats of the standard normal distribution, new ones in every step."""
    _float_only("paddle.randn", dtype)
    return _nn.normal(shape)


def normal(
    mean: float = 0.0, std: float = 1.0, shape: Sequence[Any] | None = None, name: str | None = None
) -> Variable:
    """Random floats of a normal distribution, new ones in every step."""
    if isinstance(mean, Variable) or isinstance(std, Variable) or shape is None:
        raise NotImplementedError("`mean` and `std` of `paddle.normal` as variables: say numbers, and a `shape`")
    return _nn.normal(shape, mean, std)


def pow(x: Variable, y: Any, name: str | None = None) -> Variable:
    """x to the power of a constant."""
    if isinstance(y, Variable):
        raise NotImplementedError("`y` of `paddle.pow` as a Variable: say a number")
    return _nn.pow(x, y)


def flatten(x: Variable, start_axis: int = 0, stop_axis: int = -1, name: str | None = None) -> Variable:
    """Merges several dimensions into one."""
    start, stop = start_axis % x.ndim, stop_axis % x.ndim
    if start == 0 and stop == x.ndim - 1:
        return _nn.reshape(x, [-1])
    if start == 0:
        return _nn.reshape(x, [-1, *x.shape[stop + 1 :]])
    return _nn.flatten(x, start, stop)


def tile(x: Variable, repeat_times: Sequence[int], name: str | None = None) -> Variable:
    """Repeats along dimensions. Adds dimensions of size 1 before those of x if there are more times."""
    times = [int(time) for time in repeat_times]
    if len(times) > x.ndim:
        x = _nn.unsqueeze(x, list(range(len(times) - x.ndim)))
    return _nn.tile(x, [*[1] * (x.ndim - len(times)), *times])


def where(condition: Variable, x: Any = None, y: Any = None, name: str | None = None) -> Variable:
    """Elements of x or y, as a condition says."""
    if x is None or y is None:
        raise NotImplementedError("`paddle.where` of a condition alone: give `x` and `y`")
    return _nn.where(condition, x, y)


def argmax(
    x: Variable, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64", name: str | None = None
) -> Variable:
    """Returns the position of the largest element along an axis."""
    if axis is None:
        raise NotImplementedError("`axis=None` of `paddle.argmax`: say an axis")
    if _dtype_name(dtype) != "int64":
        raise NotImplementedError(f"`dtype` `{dtype}` of `paddle.argmax`: places are `int64`")
    places = _nn.topk(x, 1, axis)[1]
    return places if keepdim else _nn.squeeze(places, [axis])


def argsort(x: Variable, axis: int = -1, descending: bool = False, name: str | None = None) -> Variable:
    """Returns the positions of all elements along an axis, sorted by value."""
    return _nn.topk(x, x.shape[axis], axis, descending)[1]


def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The sum of products along the last axis."""
    return _nn.sum(_nn.multiply(x, y), -1, keepdim=True)


def rsqrt(x: Variable, name: str | None = None) -> Variable:
    """1 / sqrt(x)."""
    return _nn.pow(x, -0.5)


def reciprocal(x: Variable, name: str | None = None) -> Variable:
    """1 / x."""
    return _nn.divide(1.0, x)


def norm(x: Variable, p: Any = "fro", axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The Euclidean length over some axes, or over all."""
    if p not in ("fro", 2, 2.0):
        raise NotImplementedError(f"`p={p!r}` of `paddle.norm`: there is the Euclidean length, 2")
    return _nn.sqrt(_nn.sum(_nn.square(x), axis, keepdim=keepdim))


def einsum(equation: str, *operands: Variable) -> Variable:
    """Sums of products by the letters of dimensions, of one or two variables: `bij,bjk->bik`.

    A letter twice in one operand, and `...`, are not supported.
    """
    left, arrow, out = equation.replace(" ", "").partition("->")
    words = left.split(",")
    if len(words) != len(operands):
        raise ValueError(f"`{equation}` names {len(words)} operands, got {len(operands)}")
    if not arrow:
        letters = "".join(words)
        out = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    if "." in equation or len(words) > 2 or any(len(set(word)) < len(word) for word in (*words, out)):
        raise NotImplementedError(f"`paddle.einsum` of `{equation}`: one or two operands of different letters each")
    for word, operand in zip(words, operands):
        if len(word) != operand.ndim:
            raise ValueError(f"`{word}` of `{equation}` names {len(word)} dimensions, got {list(operand.shape)}")
    if not set(out) <= set("".join(words)):
        raise ValueError(f"`{equation}` has a letter in its result that no operand has")
    # First sums over letters that only one operand has and that the result does not have.
    reduced = []
    for at, (word, operand) in enumerate(zip(words, operands)):
        others = set(out).union(*(words[:at] + words[at + 1 :]))
        gone = [i for i, letter in enumerate(word) if letter not in others]
        # A sum over everything leaves a dimension of 1.
        operand = _nn.sum(operand, gone) if gone else operand
        word = "".join(letter for letter in word if letter in others)
        reduced.append((word, operand))
    if len(reduced) == 1:
        return _ordered(*reduced[0], out)
    (x_word, x), (y_word, y) = reduced
    both = [letter for letter in x_word if letter in y_word and letter in out]
    summed = [letter for letter in x_word if letter in y_word and letter not in out]
    x_only = [letter for letter in x_word if letter not in y_word]
    y_only = [letter for letter in y_word if letter not in x_word]
    if len(x_only) == 1 and len(y_only) == 1 and len(summed) == 1:
        x = _ordered(x_word, x, "".join(both + x_only + summed))
        y = _ordered(y_word, y, "".join(both + summed + y_only))
        return _ordered("".join(both + x_only + y_only), _nn.matmul(x, y), out)
    # Otherwise broadcasts both operands to all letters, multiplies and sums.
    letters = "".join(both + x_only + y_only + summed)
    product = _nn.multiply(_spread(x_word, x, letters), _spread(y_word, y, letters))
    kept = len(letters) - len(summed)
    if summed:
        product = _nn.sum(product, list(range(kept, len(letters))))
    return _ordered(letters[:kept], product, out)


def _ordered(word: str, x: Variable, wanted: str) -> Variable:
    return x if word == wanted else _nn.transpose(x, [word.index(letter) for letter in wanted])


def _spread(word: str, x: Variable, letters: str) -> Variable:
    x = _ordered(word, x, "".join(letter for letter in letters if letter in word))
    missing = [at for at, letter in enumerate(letters) if letter not in word]
    return _nn.unsqueeze(x, missing) if missing and word else x


__all__ = [name for name in dir() if not name.startswith("_") and name not in ("annotations", "compat", "np")]
__all__ = [name for name in __all__ if name not in ("Any", "Sequence", "Variable")]
__getattr__ = compat.absent(__name__, __all__)
