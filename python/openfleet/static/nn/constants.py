"""Constants, masks and random numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._deprecated import IGNORED, accepts_deprecated
from ..program import Variable
from ._ops import dims, dtype_name, net_of, variable
from .comparisons import less_equal, less_than, where
from .elementwise import cast
from .reductions import cumsum
from .reductions import max as greatest
from .shapes import unsqueeze


@accepts_deprecated(name=IGNORED)
def full(shape: Sequence[Any], fill_value: float, dtype: Any = "float32") -> Variable:
    """Returns one number in every element of a shape; -1 is the batch size.

    >>> exe.run(fetch_list=[static.nn.full([2, 2], 7.0)])[0].tolist()
    [[7.0, 7.0], [7.0, 7.0]]
    """
    return variable(net_of().fill_constant(dims(shape), float(fill_value), dtype_name(dtype) == "int64"))


@accepts_deprecated(name=IGNORED)
def full_like(x: Variable, fill_value: float, dtype: Any = None) -> Variable:
    """Returns one number in every element of the shape of x, with the dtype of x by default.

    >>> exe.run(fetch_list=[static.nn.full_like(static.nn.literal([1, 2]), 7)])[0].tolist()
    [7, 7]
    """
    integers = (x.dtype if dtype is None else dtype_name(dtype)) == "int64"
    return variable(net_of(x).fill_like(x.name, float(fill_value), integers))


@accepts_deprecated(name=IGNORED)
def zeros_like(x: Variable, dtype: Any = None) -> Variable:
    """Returns zeros in the shape of x.

    >>> exe.run(fetch_list=[static.nn.zeros_like(static.nn.literal([1.0, 2.0]))])[0].tolist()
    [0.0, 0.0]
    """
    return full_like(x, 0, dtype)


@accepts_deprecated(name=IGNORED)
def ones_like(x: Variable, dtype: Any = None) -> Variable:
    """Returns ones in the shape of x.

    >>> exe.run(fetch_list=[static.nn.ones_like(static.nn.literal([5.0, 2.0]))])[0].tolist()
    [1.0, 1.0]
    """
    return full_like(x, 1, dtype)


def literal(values: Any, dtype: Any = None) -> Variable:
    """Returns the given numbers, which become part of the program.

    Args:
        values: A number, a list, or an array. A number becomes [1].
        dtype: `float32`, `int64` or `bool`; that of the values by default. Python floats are `float32`.

    Raises:
        NotImplementedError: There is no such dtype.

    >>> static.nn.literal([[1, 2], [3, 4]]).dtype
    'int64'
    """
    array = np.asarray(values)
    kind = dtype_name(array.dtype if dtype is None else dtype)
    net, sizes, flat = net_of(), list(array.shape) or [1], array.reshape(-1)
    if kind == "int64":
        return variable(net.literal_integers(sizes, flat.astype(np.int64).tolist()))
    if kind == "bool":
        return variable(net.literal_truth(sizes, flat.astype(bool).tolist()))
    if kind != "float32":
        raise NotImplementedError(f"`dtype` `{kind}`: there are `float32`, `int64` and `bool`")
    return variable(net.literal(sizes, flat.astype(np.float32).tolist()))


@accepts_deprecated(name=IGNORED)
def one_hot(x: Variable, num_classes: int, allow_out_of_range: bool = False) -> Variable:
    """Turns each integer of x [...] into a row of C = `num_classes` zeros with a 1 at its position: [..., C] floats.

    An integer outside [0, C) fails the step; with `allow_out_of_range` it gives a row of zeros.

    >>> exe.run(fetch_list=[static.nn.one_hot(static.nn.literal([1, 0]), 3)])[0].tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    return variable(net_of(x).one_hot(x.name, num_classes, allow_out_of_range))


@accepts_deprecated(name=IGNORED)
def sequence_mask(x: Variable, maxlen: int | Variable | None = None, dtype: Any = "int64") -> Variable:
    """Returns a mask [..., maxlen] for lengths x [...]: ones at the first `x[i]` positions, zeros after.

    By default `maxlen` is the greatest length, which is known only when the program runs.

    >>> exe.run(fetch_list=[static.nn.sequence_mask(static.nn.literal([1, 3]), maxlen=3)])[0].tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    if maxlen is None:
        maxlen = cast(greatest(cast(x, "float32")), "int64")
    if isinstance(maxlen, Variable):
        # The k-th sum of ones is k: position k - 1 belongs to rows of at least k elements.
        numbers = cast(cumsum(full([maxlen], 1.0)), "int64")
        return cast(less_equal(numbers, unsqueeze(x, -1)), dtype)
    return cast(less_than(literal(np.arange(int(maxlen))), unsqueeze(x, -1)), dtype)


@accepts_deprecated(name=IGNORED)
def tril(x: Variable, diagonal: int = 0) -> Variable:
    """Returns the lower triangle of the last two dimensions, with zeros above the diagonal number `diagonal`.

    Raises:
        ValueError: The last two sizes are not fixed.

    >>> exe.run(fetch_list=[static.nn.tril(static.nn.literal([[1, 2], [3, 4]]))])[0].tolist()
    [[1, 0], [3, 4]]
    """
    return _triangle(np.tril, x, diagonal)


@accepts_deprecated(name=IGNORED)
def triu(x: Variable, diagonal: int = 0) -> Variable:
    """Returns the upper triangle of the last two dimensions, with zeros below the diagonal number `diagonal`.

    Raises:
        ValueError: The last two sizes are not fixed.

    >>> exe.run(fetch_list=[static.nn.triu(static.nn.literal([[1, 2], [3, 4]]))])[0].tolist()
    [[1, 2], [0, 4]]
    """
    return _triangle(np.triu, x, diagonal)


def _triangle(keep: Callable[..., Any], x: Variable, diagonal: int) -> Variable:
    sizes = x.shape[-2:]
    if len(sizes) < 2 or min(sizes) < 0:
        raise ValueError(f"a triangle needs two last dimensions of fixed sizes, got {list(x.shape)}")
    return where(literal(keep(np.ones(sizes, bool), diagonal)), x, zeros_like(x))


def uniform(shape: Sequence[int], min: float = -1.0, max: float = 1.0, seed: int | None = None) -> Variable:
    """Draws floats uniformly from `[min, max)`: new ones in every step, or the same ones with a seed.

    >>> x = static.nn.uniform([2, 3], 0.0, 1.0, seed=1)
    >>> bool((exe.run(fetch_list=[x])[0] < 1.0).all())
    True
    """
    return _random(shape, {"uniform": {"low": float(min), "high": float(max)}}, seed)


def normal(shape: Sequence[int], mean: float = 0.0, std: float = 1.0, seed: int | None = None) -> Variable:
    """Draws floats from a normal distribution: new ones in every step, or the same ones with a seed.

    >>> x = static.nn.normal([2, 3], mean=5.0, std=0.0)
    >>> exe.run(fetch_list=[x])[0].tolist()
    [[5.0, 5.0, 5.0], [5.0, 5.0, 5.0]]
    """
    return _random(shape, {"normal": {"mean": float(mean), "std": float(std)}}, seed)


def _random(shape: Sequence[int], distribution: Any, seed: int | None) -> Variable:
    return variable(net_of().random(dims(shape), json.dumps(distribution), seed))


def multinomial(weights: Variable, num_samples: int = 1, replacement: bool = False) -> Variable:
    """Draws classes by weight, others in every step: `num_samples` from weights [C], or from each row of [N, C].

    Raises:
        ValueError: While the program runs, if a row has negative weights, or fewer above 0 than are drawn.

    >>> x = static.nn.multinomial(static.nn.literal([0.0, 5.0, 0.0]), 2, replacement=True)
    >>> exe.run(fetch_list=[x])[0].tolist()
    [1, 1]
    """
    return variable(net_of(weights).multinomial(weights.name, int(num_samples), bool(replacement)))
