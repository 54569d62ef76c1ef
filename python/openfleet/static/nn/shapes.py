"""Other shapes of the same elements: reshaping, joining, cutting, picking and repeating."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._deprecated import IGNORED, accepts_deprecated
from ..program import Program, Variable, _net
from ._ops import SizeVariable, axes, binary, dims, net_of, unary, variable


@accepts_deprecated(name=IGNORED)
def reshape(x: Variable, shape: Sequence[int]) -> Variable:
    """Returns the same elements in another shape; -1 is the batch, or a size that follows from the others.

    >>> x = static.data("x", [None, 6])
    >>> static.nn.reshape(x, [-1, 2, 3]).shape
    (-1, 2, 3)
    """
    sizes = dims(shape)
    if sizes.count(-1) > 1:
        # The batch size is -1 too, but only one size may be left open.
        sizes = dims(shape, batch_by_value=True)
    kept = list(shape) if not isinstance(shape, Variable) else [shape[i] for i in range(shape.shape[0])]
    return _moved(net_of(x).reshape(x.name, sizes), [x], lambda rows: reshape(rows[0], [*kept, rows[0].shape[-1]]))


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
    named = [at for at, size in enumerate(x.shape) if size == 1] if axis is None else [at % x.ndim for at in axes(axis)]
    return _moved(
        net_of(x).squeeze(x.name, axes(axis)), [x], lambda rows: squeeze(rows[0], named) if named else rows[0]
    )


@accepts_deprecated(name=IGNORED)
def unsqueeze(x: Variable, axis: int | Sequence[int]) -> Variable:
    """Inserts dimensions of size 1 at the positions `axis` of the result.

    >>> static.nn.unsqueeze(static.data("x", [None, 4]), 1).shape
    (-1, 1, 4)
    """
    rank = x.ndim + len(axes(axis))
    named = [at % rank for at in axes(axis)]
    return _moved(net_of(x).unsqueeze(x.name, axes(axis)), [x], lambda rows: unsqueeze(rows[0], named))


@accepts_deprecated(name=IGNORED)
def transpose(x: Variable, perm: Sequence[int]) -> Variable:
    """Reorders the dimensions: dimension i of the result is dimension `perm[i]` of x.

    >>> static.nn.transpose(static.data("x", [None, 2, 3]), [0, 2, 1]).shape
    (-1, 3, 2)
    """
    return _moved(net_of(x).transpose(x.name, list(perm)), [x], lambda rows: transpose(rows[0], [*perm, len(perm)]))


@accepts_deprecated(name=IGNORED)
def expand(x: Variable, shape: Sequence[int]) -> Variable:
    """Repeats dimensions of size 1 up to a shape; -1 keeps a dimension as it is.

    >>> static.nn.expand(static.data("x", [None, 1]), [-1, 3]).shape
    (-1, 3)
    """
    sizes, by_value = dims(shape), dims(shape, batch_by_value=True)
    for at, size in enumerate(sizes):
        own = at + x.ndim - len(sizes)
        # -1 keeps a dimension. Where x does not have the batch, the batch size is a value.
        if size == -1 and (own < 0 or x.shape[own] >= 0):
            sizes[at] = by_value[at]
    return variable(net_of(x).expand(x.name, sizes))


@accepts_deprecated(name=IGNORED)
def tile(x: Variable, repeat_times: Sequence[int]) -> Variable:
    """Repeats x along each dimension, as many times as `repeat_times` says.

    >>> exe.run(fetch_list=[static.nn.tile(static.nn.literal([[1, 2]]), [2, 2])])[0].tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    return variable(net_of(x).tile(x.name, dims(repeat_times, batch_by_value=True)))


@accepts_deprecated(name=IGNORED)
def concat(x: Sequence[Variable], axis: int = 0) -> Variable:
    """Joins variables along an existing axis; all other sizes are equal.

    Fed ids that are joined can be looked up in a sparse table like a single field.

    >>> age, city = static.data("age", [None, 1]), static.data("city", [None, 8])
    >>> static.nn.concat([age, city], axis=1).shape
    (-1, 9)
    """
    at = axis % x[0].ndim
    return _moved(net_of(*x).concat([one.name for one in x], axis), x, lambda rows: concat(rows, at))


class MovedIds(Variable):
    """All ids of some fields, in another shape or order, as `concat`, `reshape` and `transpose` return them.

    A sparse table can only be looked up with fed ids, because its rows are pulled before a step begins. So a lookup of
    moved ids looks up the fed ones and moves the rows, which gives the same result.

    >>> city, item = static.data("city", [None, 1], "int64"), static.data("item", [None, 1], "int64")
    >>> isinstance(static.nn.concat([city, item], axis=1), static.nn.MovedIds)
    True
    """

    def __init__(
        self, program: Program, name: str, parts: Sequence[Variable], move: Callable[[list[Variable]], Variable]
    ) -> None:
        super().__init__(program, name)
        self._parts, self._move = list(parts), move

    def each(self, look_up: Callable[[Variable], Variable]) -> Variable:
        """Looks up the fed ids and moves the rows as the ids were moved."""
        rows = [part.each(look_up) if isinstance(part, MovedIds) else look_up(part) for part in self._parts]
        return self._move(rows)


def _moved(name: str, parts: Sequence[Variable], move: Callable[[list[Variable]], Variable]) -> Variable:
    """Returns the result of a layer that moves all elements; `move` is the same layer for rows with one more."""
    result = variable(name)
    if result.dtype == "int64" and all(isinstance(one, MovedIds) or _is_fed(one) for one in parts):
        return MovedIds(result.program, name, parts, move)
    return result


def _is_fed(x: Variable) -> bool:
    return x.kind == "data" and not x.lod_level


@accepts_deprecated(name=IGNORED)
def stack(x: Sequence[Variable], axis: int = 0) -> Variable:
    """Joins variables of one shape along a new axis.

    >>> x, y = static.data("x", [None, 4]), static.data("y", [None, 4])
    >>> static.nn.stack([x, y], axis=1).shape
    (-1, 2, 4)
    """
    at = axis % (x[0].ndim + 1)
    return _moved(net_of(*x).stack([one.name for one in x], axis), x, lambda rows: stack(rows, at))


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
    first, last = (dims(bounds, batch_by_value=True) for bounds in (starts, ends))
    return variable(net_of(input).slice(input.name, list(axes), first, last))


def getitem(x: Variable, index: Any) -> Variable:
    """Returns `x[index]` for integers and ranges, one per dimension, `...` and None.

    An integer removes its dimension, None inserts one of size 1. `x[mask]` selects by a mask of the shape of x.
    """
    if isinstance(index, Variable):
        from .comparisons import masked_select

        return masked_select(x, index) if index.dtype == "bool" else gather(x, index)
    parts = list(index) if isinstance(index, tuple) else [index]
    if None in [part for part in parts if part is None]:
        kept = getitem(x, tuple(part for part in parts if part is not None) or (np.s_[:],))
        at = [sum(not isinstance(p, (int, np.integer)) for p in parts[:i]) for i, p in enumerate(parts) if p is None]
        return unsqueeze(kept, at)
    if any(part is Ellipsis for part in parts):
        where = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts[where : where + 1] = [np.s_[:]] * (x.ndim - len(parts) + 1)
    sliced, starts, ends, removed = [], [], [], []
    for axis, part in enumerate(parts):
        if isinstance(part, type(np.s_[:])) and part.step not in (None, 1):
            if x.shape[axis] < 0:
                raise TypeError(f"a range with a step expects a fixed size, got {list(x.shape)} along dimension {axis}")
            from .constants import literal

            x, part = gather(x, literal(np.arange(x.shape[axis])[part]), axis), np.s_[:]
        if isinstance(part, (int, np.integer)):
            sliced.append(axis)
            starts.append(int(part))
            ends.append(int(part) + 1 if part != -1 else np.iinfo(np.int32).max)
            removed.append(axis)
        elif isinstance(part, type(np.s_[:])):
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
    return transpose(gather(transpose(x, perm), index), perm)


def gather_nd(x: Variable, index: Variable) -> Variable:
    """Picks parts of x by the last K numbers of an `int64` index [..., K], one for each of its first K dimensions.

    >>> x = static.nn.literal([[1, 2], [3, 4]])
    >>> exe.run(fetch_list=[static.nn.gather_nd(x, static.nn.literal([[0, 1], [1, 1]]))])[0].tolist()
    [2, 4]
    """
    return binary("gather_nd", x, index)


def scatter(x: Variable, index: Variable, updates: Variable, overwrite: bool = True) -> Variable:
    """Returns x with rows replaced: row `index[i]` by row i of `updates`.

    If rows are named more than once, the last one counts; with `overwrite=False` their sum.

    >>> x, updates = static.nn.literal([[1.0], [2.0], [3.0]]), static.nn.literal([[9.0]])
    >>> exe.run(fetch_list=[static.nn.scatter(x, static.nn.literal([1]), updates)])[0].tolist()
    [[1.0], [9.0], [3.0]]
    """
    net = net_of(x, index, updates)
    return variable(net.scatter(x.name, index.name, updates.name, "overwrite" if overwrite else "sum"))


def scatter_add(x: Variable, index: Variable, updates: Variable) -> Variable:
    """Returns x with row i of `updates` added to row `index[i]`.

    >>> x, updates = static.nn.literal([[1.0], [2.0]]), static.nn.literal([[9.0], [9.0]])
    >>> exe.run(fetch_list=[static.nn.scatter_add(x, static.nn.literal([1, 1]), updates)])[0].tolist()
    [[1.0], [20.0]]
    """
    return variable(net_of(x, index, updates).scatter(x.name, index.name, updates.name, "add"))


def nonzero(x: Variable) -> Variable:
    """Returns the indices of the elements that are not 0, as `int64` [-1, ndim].

    How many there are is known only when the program runs.

    >>> x = static.nn.literal([[0.0, 2.0], [3.0, 0.0]])
    >>> exe.run(fetch_list=[static.nn.nonzero(x)])[0].tolist()
    [[0, 1], [1, 0]]
    """
    return unary("nonzero", x)


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
        rows = self._of.program._native.rows_in(self._of.name)[index]
        if rows > 1 or (rows == 0 and self._of.shape[index] < 0):
            # Its value is known when the program runs.
            return picked
        size = SizeVariable(picked.program, picked.name)
        size.known_size = -1 if rows else self._of.shape[index]
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
