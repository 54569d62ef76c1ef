"""Other shapes of the same elements: reshaping, joining, cutting, picking and repeating."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._deprecated import IGNORED, accepts_deprecated
from ..program import Program, Variable, _net
from ._ops import Selected, SizeVariable, axes, binary, dims, net_of, unary, variable


@accepts_deprecated(name=IGNORED)
def reshape(x: Variable, shape: Sequence[int]) -> Variable:
    """Returns the same elements in another shape; -1 is the batch, or a size that follows from the others.

    >>> x = static.data("x", [None, 6])
    >>> static.nn.reshape(x, [-1, 2, 3]).shape
    (-1, 2, 3)
    """
    if isinstance(x, Selected) and list(shape) in ([-1], [-1, 1]):
        return x
    return variable(net_of(x).reshape(x.name, dims(shape)))


@accepts_deprecated(name=IGNORED)
def flatten(x: Variable, start_axis: int = 1, stop_axis: int = -1) -> Variable:
    """Merges the dimensions from `start_axis` to `stop_axis`, both included, into one.

    Raises:
        NotImplementedError: `start_axis` is the batch; use `reshape`.

    >>> x = static.data("x", [None, 2, 3, 4])
    >>> static.nn.flatten(x).shape, static.nn.flatten(x, 1, 2).shape
    ((-1, 24), (-1, 6, 4))
    """
    stop = stop_axis % x.ndim
    if start_axis < 1:
        raise NotImplementedError("`flatten` over the batch: use `reshape`")
    size = int(np.prod(x.shape[start_axis : stop + 1]))
    return reshape(x, [-1, *x.shape[1:start_axis], size, *x.shape[stop + 1 :]])


@accepts_deprecated(name=IGNORED)
def squeeze(x: Variable, axis: int | Sequence[int] | None = None) -> Variable:
    """Removes dimensions of size 1: those of `axis`, or all of them.

    >>> static.nn.squeeze(static.data("x", [None, 1, 4]), 1).shape
    (-1, 4)
    """
    return variable(net_of(x).squeeze(x.name, axes(axis)))


@accepts_deprecated(name=IGNORED)
def unsqueeze(x: Variable, axis: int | Sequence[int]) -> Variable:
    """Inserts dimensions of size 1 at the positions `axis` of the result.

    >>> static.nn.unsqueeze(static.data("x", [None, 4]), 1).shape
    (-1, 1, 4)
    """
    return variable(net_of(x).unsqueeze(x.name, axes(axis)))


@accepts_deprecated(name=IGNORED)
def transpose(x: Variable, perm: Sequence[int]) -> Variable:
    """Reorders the dimensions: dimension i of the result is dimension `perm[i]` of x.

    >>> static.nn.transpose(static.data("x", [None, 2, 3]), [0, 2, 1]).shape
    (-1, 3, 2)
    """
    return variable(net_of(x).transpose(x.name, list(perm)))


@accepts_deprecated(name=IGNORED)
def expand(x: Variable, shape: Sequence[int]) -> Variable:
    """Repeats dimensions of size 1 up to a shape; -1 keeps a dimension as it is.

    >>> static.nn.expand(static.data("x", [None, 1]), [-1, 3]).shape
    (-1, 3)
    """
    return variable(net_of(x).expand(x.name, dims(shape)))


@accepts_deprecated(name=IGNORED)
def tile(x: Variable, repeat_times: Sequence[int]) -> Variable:
    """Repeats x along each dimension, as many times as `repeat_times` says.

    >>> exe.run(fetch_list=[static.nn.tile(static.nn.literal([[1, 2]]), [2, 2])])[0].tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    return variable(net_of(x).tile(x.name, list(repeat_times)))


@accepts_deprecated(name=IGNORED)
def concat(x: Sequence[Variable], axis: int = 0) -> Variable:
    """Joins variables along an existing axis; all other sizes are equal.

    Fed ids that are joined can be looked up in a sparse table like a single field.

    >>> age, city = static.data("age", [None, 1]), static.data("city", [None, 8])
    >>> static.nn.concat([age, city], axis=1).shape
    (-1, 9)
    """
    joined = variable(net_of(*x).concat([one.name for one in x], axis))
    if joined.dtype == "int64" and all(one.kind == "data" for one in x):
        return JoinedIds(joined.program, joined.name, x, axis)
    return joined


class JoinedIds(Variable):
    """The ids of several fields side by side, as `concat` joins them.

    A sparse table can only be looked up with fed ids, because its rows are pulled before a step begins. So a lookup of
    joined ids looks up each field by itself and joins the rows, which gives the same result.

    >>> city, item = static.data("city", [None, 1], "int64"), static.data("item", [None, 1], "int64")
    >>> isinstance(static.nn.concat([city, item], axis=1), static.nn.JoinedIds)
    True
    """

    def __init__(self, program: Program, name: str, parts: Sequence[Variable], axis: int) -> None:
        super().__init__(program, name)
        self._parts, self._axis = list(parts), axis % parts[0].ndim

    def each(self, look_up: Callable[[Variable], Variable]) -> Variable:
        """Looks up each field and joins the rows as the ids were joined."""
        return concat([look_up(part) for part in self._parts], self._axis)


@accepts_deprecated(name=IGNORED)
def stack(x: Sequence[Variable], axis: int = 0) -> Variable:
    """Joins variables of one shape along a new axis.

    >>> x, y = static.data("x", [None, 4]), static.data("y", [None, 4])
    >>> static.nn.stack([x, y], axis=1).shape
    (-1, 2, 4)
    """
    return variable(net_of(*x).stack([one.name for one in x], axis))


@accepts_deprecated(name=IGNORED)
def split(x: Variable, num_or_sections: int | Sequence[int], axis: int = 0) -> list[Variable]:
    """Cuts x along an axis: into a number of equal parts, or into parts of given sizes.

    >>> x = static.data("x", [None, 6])
    >>> [part.shape for part in static.nn.split(x, [2, 4], axis=1)]
    [(-1, 2), (-1, 4)]
    """
    net = net_of(x)
    if isinstance(num_or_sections, int):
        return [variable(part) for part in net.split_evenly(x.name, num_or_sections, axis)]
    return [variable(part) for part in net.split(x.name, list(num_or_sections), axis)]


def slice(input: Variable, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Variable:
    """Returns the range `[starts[i], ends[i])` of each dimension `axes[i]`. `x[:, 1:3]` is the short form.

    >>> x = static.nn.literal([[1, 2, 3, 4]])
    >>> exe.run(fetch_list=[static.nn.slice(x, [1], [1], [3])])[0].tolist()
    [[2, 3]]
    """
    return variable(net_of(input).slice(input.name, list(axes), list(starts), list(ends)))


def getitem(x: Variable, index: Any) -> Variable:
    """Returns `x[index]` for integers and ranges of step 1, one per dimension. An integer removes its dimension."""
    parts = index if isinstance(index, tuple) else (index,)
    sliced, starts, ends, removed = [], [], [], []
    for axis, part in enumerate(parts):
        if isinstance(part, int):
            sliced.append(axis)
            starts.append(part)
            ends.append(part + 1 if part != -1 else np.iinfo(np.int32).max)
            removed.append(axis)
        elif isinstance(part, type(np.s_[:])) and part.step in (None, 1):
            if part.start is not None or part.stop is not None:
                sliced.append(axis)
                starts.append(part.start or 0)
                ends.append(np.iinfo(np.int32).max if part.stop is None else part.stop)
        else:
            raise TypeError(f"a variable is indexed by integers and ranges, got {part!r}")
    y = slice(x, sliced, starts, ends) if sliced else x
    return squeeze(y, removed) if removed else y


@accepts_deprecated(name=IGNORED)
def gather(x: Variable, index: Variable, axis: int = 0) -> Variable:
    """Picks slices of x by their positions along an axis. The index is `int64`, [K]; the axis then has size K.

    >>> x = static.nn.literal([[1, 2], [3, 4], [5, 6]])
    >>> exe.run(fetch_list=[static.nn.gather(x, static.nn.literal([2, 0]))])[0].tolist()
    [[5, 6], [1, 2]]
    """
    axis = int(axis) % x.ndim
    if axis == 0:
        return binary("gather", x, index)
    perm = list(range(x.ndim))
    perm[0], perm[axis] = axis, 0
    return transpose(binary("gather", transpose(x, perm), index), perm)


class ShapeVariable(Variable):
    """The result of `shape`. `shape(x)[0]` can be used as a size of a new shape.

    >>> x = static.data("x", [None, 6])
    >>> static.nn.reshape(x, [static.nn.shape(x)[0], 2, 3]).shape
    (-1, 2, 3)
    """

    _of: Variable

    def __getitem__(self, index: Any) -> Variable:
        picked = getitem(self, index)
        if not isinstance(index, int):
            return picked
        size = SizeVariable(picked.program, picked.name)
        rows = self._of.program._native.rows_in(self._of.name)[index]
        if rows > 1:
            raise NotImplementedError(f"`shape(...)[{index}]`: a dimension of {rows} times the batch")
        size.size = -1 if rows else self._of.shape[index]
        return size


def shape(input: Variable) -> Variable:
    """Returns the sizes of a variable's dimensions in this step, the batch size among them, as [ndim] `int64`.

    >>> x = static.data("x", [None, 2])
    >>> exe.run(feed={"x": np.ones((3, 2))}, fetch_list=[static.nn.shape(x)])[0].tolist()
    [3, 2]
    """
    sizes = ShapeVariable(_net().main, unary("shape", input).name)
    sizes._of = input
    return sizes
