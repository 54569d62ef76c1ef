"""`paddle.tensor`: functions on variables, with PaddlePaddle's argument names and defaults.

Functions that differ from `openfleet.static.nn` are defined here; the others are re-exported.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from openfleet import compat
from openfleet.static import nn as _nn
from openfleet.static.nn import _ops
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
    return _nn.assign(x if isinstance(x, Variable) else _nn.literal(x), output)


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Variable:
    """Given numbers; Python's floats are float32."""
    if isinstance(data, Variable):
        return _nn.assign(data) if dtype is None else _nn.cast(data, dtype)
    if not stop_gradient:
        raise NotImplementedError("`stop_gradient=False` of `paddle.to_tensor`: use `paddle.create_parameter`")
    return _nn.literal(data, dtype)


def arange(start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, name: str | None = None) -> Variable:
    """Numbers from `start` to before `end`."""
    start, end = (0, start) if end is None else (start, end)
    if isinstance(start, Variable) or isinstance(step, Variable):
        raise NotImplementedError("`start` and `step` of `paddle.arange` as variables: say numbers")
    if isinstance(end, Variable):
        if start != 0 or step != 1:
            raise NotImplementedError("`paddle.arange` up to a Variable: from 0 in steps of 1")
        numbers = _nn.scale(_nn.cumsum(_nn.full([end], 1.0)), 1.0, -1.0)
        return _nn.cast(numbers, "int64" if dtype is None else dtype)
    return _nn.literal(np.arange(start, end, step), dtype)


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
    """x to the power of a number; or of a variable, for x above 0."""
    if isinstance(y, Variable):
        return _nn.exp(_nn.multiply(_nn.log(x), _nn.cast(y, "float32")))
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
    times = _list_of(repeat_times)
    if len(times) > x.ndim:
        x = _nn.unsqueeze(x, list(range(len(times) - x.ndim)))
    return _nn.tile(x, [*[1] * (x.ndim - len(times)), *times])


def _list_of(sizes: Any) -> list[Any]:
    """Sizes as numbers and variables: a variable [K] has K of them."""
    return [sizes[at] for at in range(sizes.shape[0])] if isinstance(sizes, Variable) else list(sizes)


def where(condition: Variable, x: Any = None, y: Any = None, name: str | None = None) -> Any:
    """Elements of x or y, as a condition says; of a condition alone, the positions where it is true, for each axis."""
    if x is None and y is None:
        return tuple(_nn.split(_nn.nonzero(condition), condition.ndim, 1))
    if x is None or y is None:
        raise ValueError("`paddle.where` expects both `x` and `y`, or neither")
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
    return _nn.sort(x, axis, descending)[1]


def sort(x: Variable, axis: int = -1, descending: bool = False, name: str | None = None) -> Variable:
    """Returns all elements along an axis, sorted by value."""
    return _nn.sort(x, axis, descending)[0]


def nonzero(x: Variable, as_tuple: bool = False) -> Any:
    """Returns the positions of the elements that are not 0, one row each."""
    found = _nn.nonzero(x)
    return tuple(_nn.split(found, x.ndim, 1)) if as_tuple else found


def argmin(
    x: Variable, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64", name: str | None = None
) -> Variable:
    """Returns the position of the smallest element along an axis."""
    return argmax(_nn.scale(x, -1.0), axis, keepdim, dtype)


def index_select(x: Variable, index: Variable, axis: int = 0, name: str | None = None) -> Variable:
    """Returns slices of x, by their positions along an axis."""
    return _nn.gather(x, index, axis)


def gather_nd(x: Variable, index: Variable, name: str | None = None) -> Variable:
    """Returns parts of x by several positions each."""
    return _nn.gather_nd(x, index)


def scatter(
    x: Variable, index: Variable, updates: Variable, overwrite: bool = True, name: str | None = None
) -> Variable:
    """Returns x with rows replaced."""
    return _nn.scatter(x, index, updates, overwrite)


def scatter_nd_add(x: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """Returns x with updates added to the rows that `index` `[M, 1]` names."""
    if index.shape[-1] != 1:
        raise NotImplementedError(f"`index` of `paddle.scatter_nd_add` expects [M, 1], got {list(index.shape)}")
    return _nn.scatter_add(x, _nn.reshape(index, [-1]), updates)


def prod(x: Variable, axis: Any = None, keepdim: bool = False, dtype: Any = None, name: str | None = None) -> Variable:
    """The product over some axes, or over all elements."""
    return _nn.prod(x if dtype is None else _nn.cast(x, dtype), axis, keepdim)


def cumsum(x: Variable, axis: int | None = None, dtype: Any = None, name: str | None = None) -> Variable:
    """The sums of the elements so far along an axis, or over all elements in order."""
    x = x if dtype is None else _nn.cast(x, dtype)
    integers = x.dtype != "float32"
    x = _nn.cast(x, "float32") if integers else x
    sums = _nn.cumsum(_nn.reshape(x, [-1]), 0) if axis is None else _nn.cumsum(x, axis)
    return _nn.cast(sums, "int64") if integers else sums


def multinomial(x: Variable, num_samples: int = 1, replacement: bool = False, name: str | None = None) -> Variable:
    """Classes drawn at random, by weight."""
    return _nn.multinomial(x, num_samples, replacement)


def randint(
    low: int = 0, high: int | None = None, shape: Sequence[Any] = (1,), dtype: Any = None, name: str | None = None
) -> Variable:
    """Random integers from `low` to before `high`, new ones in every step."""
    low, high = (0, low) if high is None else (low, high)
    drawn = _nn.floor(_nn.uniform(shape, float(low), float(high)))
    return _nn.cast(drawn, "int64" if dtype is None else dtype)


def mod(x: Any, y: Any, name: str | None = None) -> Variable:
    """The remainder of `floor_divide`, which has the sign of y."""
    if _is_integer(x, y):
        return _nn.modulo(x, y)
    return _nn.subtract(x, _nn.multiply(_nn.floor(_nn.divide(x, y)), y))


remainder = floor_mod = mod


def floor_divide(x: Any, y: Any, name: str | None = None) -> Variable:
    """x / y, rounded down."""
    return _nn.floor_divide(x, y) if _is_integer(x, y) else _nn.floor(_nn.divide(x, y))


def _is_integer(x: Any, y: Any) -> bool:
    return builtins.all(one.dtype == "int64" if isinstance(one, Variable) else isinstance(one, int) for one in (x, y))


def _bitwise(name: str, x: Variable, y: Variable) -> Variable:
    if x.dtype == "bool":
        return {"and": _nn.logical_and, "or": _nn.logical_or, "xor": _nn.not_equal}[name](x, y)
    return getattr(_nn, f"bitwise_{name}")(x, y)


def bitwise_and(x: Variable, y: Variable, out: Any = None, name: str | None = None) -> Variable:
    """The bits that both have, of integers or booleans."""
    return _bitwise("and", x, y)


def bitwise_or(x: Variable, y: Variable, out: Any = None, name: str | None = None) -> Variable:
    """The bits that one or both have, of integers or booleans."""
    return _bitwise("or", x, y)


def bitwise_xor(x: Variable, y: Variable, out: Any = None, name: str | None = None) -> Variable:
    """The bits that exactly one has, of integers or booleans."""
    return _bitwise("xor", x, y)


def bitwise_not(x: Variable, out: Any = None, name: str | None = None) -> Variable:
    """All other bits, of integers or booleans."""
    return _nn.logical_not(x) if x.dtype == "bool" else _nn.bitwise_xor(x, -1)


def logical_xor(x: Variable, y: Variable, out: Any = None, name: str | None = None) -> Variable:
    """Whether exactly one is true."""
    return _nn.not_equal(_nn.cast(x, "bool"), _nn.cast(y, "bool"))


def _float_of(name: str) -> Any:
    function = getattr(_nn, name)

    def named(x: Variable, name: str | None = None) -> Variable:
        return function(x)

    named.__name__, named.__doc__ = name, function.__doc__.partition("\n")[0]
    return named


ceil, floor, round, sign, sin, cos, log1p, erf = map(
    _float_of, ["ceil", "floor", "round", "sign", "sin", "cos", "log1p", "erf"]
)


def log2(x: Variable, name: str | None = None) -> Variable:
    """The logarithm to base 2."""
    return _nn.scale(_nn.log(x), 1.0 / math.log(2.0))


def log10(x: Variable, name: str | None = None) -> Variable:
    """The logarithm to base 10."""
    return _nn.scale(_nn.log(x), 1.0 / math.log(10.0))


def expm1(x: Variable, name: str | None = None) -> Variable:
    """exp(x) - 1."""
    return _nn.scale(_nn.exp(x), 1.0, -1.0)


def isnan(x: Variable, name: str | None = None) -> Variable:
    """Whether an element is not a number."""
    return _nn.not_equal(x, x)


def logsumexp(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """log sum exp(x) over some axes, or over all."""
    greatest = _nn.max(x, axis, True)
    sums = _nn.log(_nn.sum(_nn.exp(_nn.subtract(x, greatest)), axis, keepdim=True))
    total = _nn.add(sums, greatest)
    if keepdim:
        return total
    axes = list(range(x.ndim)) if axis is None else [axis] if isinstance(axis, int) else list(axis)
    return _nn.reshape(total, [1]) if len(axes) == x.ndim else _nn.squeeze(total, axes)


def std(
    x: Variable, axis: Any = None, unbiased: bool = True, keepdim: bool = False, name: str | None = None
) -> Variable:
    """The standard deviation over some axes, or over all."""
    return _nn.sqrt(var(x, axis, unbiased, keepdim))


def var(
    x: Variable, axis: Any = None, unbiased: bool = True, keepdim: bool = False, name: str | None = None
) -> Variable:
    """The variance over some axes, or over all."""
    centred = _nn.subtract(x, _nn.mean(x, axis, True))
    total = _nn.sum(_nn.square(centred), axis, keepdim=keepdim)
    count = _nn.sum(_nn.ones_like(x), axis, keepdim=keepdim)
    return _nn.divide(total, _nn.scale(count, 1.0, -1.0) if unbiased else count)


def any(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """Whether an element is true, over some axes or over all."""
    return _nn.cast(_nn.max(_nn.cast(x, "float32"), axis, keepdim), "bool")


def all(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """Whether all elements are true, over some axes or over all."""
    return _nn.cast(_nn.min(_nn.cast(x, "float32"), axis, keepdim), "bool")


def unbind(input: Variable, axis: int = 0) -> list[Variable]:
    """The slices along an axis, without it."""
    return [_nn.squeeze(part, [axis]) for part in _nn.split(input, input.shape[axis], axis)]


unstack = unbind


def chunk(x: Variable, chunks: int, axis: int = 0, name: str | None = None) -> list[Variable]:
    """Parts of equal size along an axis."""
    return _nn.split(x, chunks, axis)


def flip(x: Variable, axis: Any, name: str | None = None) -> Variable:
    """The elements in the opposite order along some axes."""
    for one in [axis] if isinstance(axis, int) else axis:
        if x.shape[one] < 0:
            raise NotImplementedError(f"`axis` {one} of `paddle.flip`, whose size is known only when the program runs")
        x = _nn.gather(x, _nn.literal(np.arange(x.shape[one])[::-1].copy()), one)
    return x


def mm(input: Variable, mat2: Variable, name: str | None = None) -> Variable:
    """The matrix product."""
    return _nn.matmul(input, mat2)


def t(input: Variable, name: str | None = None) -> Variable:
    """A matrix with rows and columns exchanged."""
    return _nn.transpose(input, [1, 0]) if input.ndim == 2 else input


def sigmoid(x: Variable, name: str | None = None) -> Variable:
    """1 / (1 + exp(-x))."""
    return _nn.sigmoid(x)


def masked_fill(x: Variable, mask: Variable, value: Any, name: str | None = None) -> Variable:
    """x, with one number where a mask is true."""
    return _nn.where(mask, value if isinstance(value, Variable) else _nn.full_like(x, value), x)


def broadcast_to(x: Variable, shape: Sequence[Any], name: str | None = None) -> Variable:
    """Repeats dimensions of size 1."""
    return _nn.expand(x, shape)


def expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Repeats dimensions of size 1 up to the shape of y."""
    return _ops.binary("expand_as", x, y)


def numel(x: Variable, name: str | None = None) -> Variable:
    """The number of elements."""
    return _nn.cast(_nn.prod(_nn.cast(_nn.shape(x), "float32")), "int64")


def increment(x: Variable, value: float = 1.0, name: str | None = None) -> Variable:
    """Adds a number to a variable of `create_global_var`, and returns the sum."""
    return _nn.assign(_nn.add(x, value if x.dtype == "float32" else int(value)), x)


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
    if "." in equation or len(words) > 2 or builtins.any(len(set(word)) < len(word) for word in (*words, out)):
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


_MODULES = ("annotations", "builtins", "compat", "math", "np")
__all__ = [name for name in dir() if not name.startswith("_") and name not in _MODULES]
__all__ = [name for name in __all__ if name not in ("Any", "Sequence", "Variable")]
__getattr__ = compat.absent(__name__, __all__)
