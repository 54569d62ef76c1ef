"""Sums, means, products and extremes over axes, and the order of the elements along one.

`axis` is one axis, several, or None for all of them; the result of all axes is [1]. `keepdim=True` keeps the reduced
dimensions with size 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._deprecated import IGNORED, accepts_deprecated
from ..program import Variable
from ._ops import axes, net_of, unary, variable
from .elementwise import cast, scale
from .shapes import transpose


def _reduced(op: str, x: Variable, axis: int | Sequence[int] | None, keepdim: bool) -> Variable:
    return variable(net_of(x).reduce(op, x.name, axes(axis), keepdim))


@accepts_deprecated(name=IGNORED)
def sum(x: Variable, axis: Any = None, dtype: Any = None, keepdim: bool = False) -> Variable:
    """Returns the sum over some axes or over all elements; with `dtype` the elements are cast first.

    >>> x = static.nn.literal([[1.0, 2.0], [3.0, 4.0]])
    >>> [y.tolist() for y in exe.run(fetch_list=[static.nn.sum(x), static.nn.sum(x, axis=1)])]
    [[10.0], [3.0, 7.0]]
    """
    if dtype is not None:
        x = cast(x, dtype)
    return _reduced("sum", x, axis, keepdim)


@accepts_deprecated(name=IGNORED)
def mean(x: Variable, axis: Any = None, keepdim: bool = False) -> Variable:
    """Returns the mean over some axes or over all elements. The mean of a loss is what an optimizer minimizes.

    >>> x = static.nn.literal([[1.0, 2.0], [3.0, 4.0]])
    >>> [y.tolist() for y in exe.run(fetch_list=[static.nn.mean(x), static.nn.mean(x, axis=0)])]
    [[2.5], [2.0, 3.0]]
    """
    return unary("mean", x) if axis is None and not keepdim else _reduced("mean", x, axis, keepdim)


@accepts_deprecated(name=IGNORED)
def max(x: Variable, axis: Any = None, keepdim: bool = False) -> Variable:
    """Returns the largest element over some axes or over all.

    >>> x = static.nn.literal([[1.0, 2.0], [3.0, 4.0]])
    >>> exe.run(fetch_list=[static.nn.max(x, axis=1)])[0].tolist()
    [2.0, 4.0]
    """
    return _reduced("max", x, axis, keepdim)


@accepts_deprecated(name=IGNORED)
def min(x: Variable, axis: Any = None, keepdim: bool = False) -> Variable:
    """Returns the smallest element over some axes or over all.

    >>> x = static.nn.literal([[1.0, 2.0], [3.0, 4.0]])
    >>> exe.run(fetch_list=[static.nn.min(x, axis=1)])[0].tolist()
    [1.0, 3.0]
    """
    return scale(max(scale(x, -1.0), axis, keepdim), -1.0)


@accepts_deprecated(sorted=IGNORED, name=IGNORED)
def topk(x: Variable, k: int, axis: int | None = None, largest: bool = True) -> tuple[Variable, Variable]:
    """Returns the k largest elements along an axis in descending order, and their positions.

    Args:
        x: [..., N, ...] floats, with N along the axis.
        k: How many elements, at most N.
        axis: The axis; the last one by default.
        largest: False for the k smallest elements, in ascending order.

    Returns:
        The values and their `int64` positions along the axis, both with size k there.

    >>> values, positions = static.nn.topk(static.nn.literal([[3.0, 9.0, 5.0]]), k=2)
    >>> [y.tolist() for y in exe.run(fetch_list=[values, positions])]
    [[[9.0, 5.0]], [[1, 2]]]
    """
    axis = x.ndim - 1 if axis is None else axis % x.ndim
    if axis == x.ndim - 1:
        value_name, position_name = net_of(x).topk(x.name, int(k), bool(largest))
        return variable(value_name), variable(position_name)
    perm = list(range(x.ndim))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    values, positions = topk(transpose(x, perm), k, -1, largest)
    return transpose(values, perm), transpose(positions, perm)


def prod(x: Variable, axis: Any = None, keepdim: bool = False) -> Variable:
    """Returns the product over some axes or over all elements.

    >>> x = static.nn.literal([[1.0, 2.0], [3.0, 4.0]])
    >>> [y.tolist() for y in exe.run(fetch_list=[static.nn.prod(x), static.nn.prod(x, axis=1)])]
    [[24.0], [2.0, 12.0]]
    """
    return _reduced("prod", x, axis, keepdim)


def cumsum(x: Variable, axis: int = -1) -> Variable:
    """Returns the sums of the elements so far along an axis.

    >>> exe.run(fetch_list=[static.nn.cumsum(static.nn.literal([1.0, 2.0, 3.0]))])[0].tolist()
    [1.0, 3.0, 6.0]
    """
    return variable(net_of(x).cumsum(x.name, int(axis)))


def sort(x: Variable, axis: int = -1, descending: bool = False) -> tuple[Variable, Variable]:
    """Returns the elements along an axis in order, and their `int64` positions there.

    Among equal elements the one with the lower position comes first; NaN comes last.

    >>> values, positions = static.nn.sort(static.nn.literal([3.0, 1.0, 2.0]))
    >>> [y.tolist() for y in exe.run(fetch_list=[values, positions])]
    [[1.0, 2.0, 3.0], [1, 2, 0]]
    """
    axis = int(axis) % x.ndim
    if axis == x.ndim - 1:
        value_name, position_name = net_of(x).sort(x.name, bool(descending))
        return variable(value_name), variable(position_name)
    perm = list(range(x.ndim))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    values, positions = sort(transpose(x, perm), -1, descending)
    return transpose(values, perm), transpose(positions, perm)
