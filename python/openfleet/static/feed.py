"""Converts rows and arrays to the columns that a step reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from .._deprecated import IGNORED, accepts_deprecated
from .program import Program, Variable


class LoDTensor:
    """The ids of a slot: `ids` of all rows one after the other, and `lengths`, the number of ids per row [B].

    >>> create_lod_tensor([[1, 2], [], [3]]).recursive_sequence_lengths()
    [[2, 0, 1]]
    """

    def __init__(self, ids: Any, lengths: Any) -> None:
        self.ids = _integers(ids).reshape(-1)
        self.lengths = _integers(lengths).reshape(-1)

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Returns the number of ids per row, in a list of one level."""
        return [self.lengths.tolist()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.ids.reshape(-1, 1) if dtype is None else self.ids.reshape(-1, 1).astype(dtype)


@accepts_deprecated(place=IGNORED)
def create_lod_tensor(data: Any, recursive_seq_lens: Sequence[Sequence[int]] | None = None) -> LoDTensor:
    """Makes the value of a slot from a list of rows, or from all ids and the lengths of the rows.

    Raises:
        NotImplementedError: There is more than one level of lengths.
        TypeError: The ids are not integers.

    >>> static.create_lod_tensor([[1, 2], [], [3]]).ids.tolist()
    [1, 2, 3]
    >>> static.create_lod_tensor([1, 2, 3], [[2, 0, 1]]).lengths.tolist()
    [2, 0, 1]
    """
    if recursive_seq_lens is not None:
        if len(recursive_seq_lens) != 1:
            raise NotImplementedError("a slot has one level of rows")
        return LoDTensor(data, recursive_seq_lens[0])
    rows: list[Any] = list(data)
    if all(isinstance(row, (list, tuple)) for row in rows):
        # Builds one array of all ids: an array per row would cost more than the training step itself.
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ids = _integers(list(chain.from_iterable(rows)))
        if ids.ndim == 1:
            return LoDTensor(ids, lengths)
    rows = [np.atleast_1d(_integers(row)).reshape(-1) for row in rows]
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    return LoDTensor(np.concatenate(rows) if rows else np.empty(0, np.int64), lengths)


def _integers(values: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype == np.uint64:
        return array.view(np.int64)
    if array.dtype == object or not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
        raise TypeError(f"expected integers, got an array of {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)


Columns = tuple[list[tuple[str, Any, list[int]]], list[tuple[str, Any, list[int]]], list[tuple[str, Any, Any]]]


def columns(program: Program, feed: Mapping[str, Any]) -> Columns:
    """Returns the floats, integers and slots of a feed as the engine reads them."""
    floats: list[tuple[str, Any, list[int]]] = []
    ints: list[tuple[str, Any, list[int]]] = []
    slots: list[tuple[str, Any, Any]] = []
    for name, value in feed.items():
        shape, dtype, _, ragged, _ = program._native.variable(name)
        if ragged:
            slot = value if isinstance(value, LoDTensor) else _slot(name, value)
            slots.append((name, slot.lengths, slot.ids))
            continue
        try:
            array = np.asarray(value) if dtype == "float32" else _integers(value)
            flat = np.ascontiguousarray(array, dtype=np.float32 if dtype != "int64" else np.int64)
        except (TypeError, ValueError) as error:
            raise type(error)(f"feed `{name}`: {error}") from None
        got = list(flat.shape)
        per_row = elements_per_row(shape)
        if per_row is not None:
            _check_shape(name, flat.shape, shape)
            got = [flat.size // max(1, per_row), *shape[1:]]
        (ints if dtype == "int64" else floats).append((name, flat.reshape(-1), got))
    return floats, ints, slots


def elements_per_row(shape: Sequence[int]) -> int | None:
    """Returns the elements of a row of the batch; None if a size other than the first, the batch, is not fixed."""
    if len(shape) == 0 or shape[0] >= 0:
        return None
    elements = 1
    for size in shape[1:]:
        if size < 0:
            return None
        elements *= size
    return elements


def _slot(name: str, value: Any) -> LoDTensor:
    try:
        if isinstance(value, np.ndarray) and value.dtype != object:
            rows = value.reshape(len(value), -1)
            return LoDTensor(rows, np.full(len(rows), rows.shape[1], np.int64))
        return create_lod_tensor(value)
    except TypeError as error:
        raise TypeError(f"feed `{name}`: {error}") from None


def _check_shape(name: str, got: tuple[int, ...], expected: list[int]) -> None:
    """Raises ValueError unless a row has as many elements as the program declares; dimensions of 1 do not matter."""
    per_row = math.prod(expected[1:])
    fits = len(got) > 0 and math.prod(got[1:]) == per_row
    if not fits and not (len(got) == 1 and got[0] == per_row and len(expected) == 2):
        raise ValueError(f"feed `{name}`: expected an array of shape {expected} (-1 is the batch), got {list(got)}")


class DataFeeder:
    """Turns rows into one array per variable, for `Executor.run(feed=...)`.

    `feed_list` has the data variables, or their names, in the order of a row's fields; names are looked up in
    `program`, the default main program by default.

    >>> feeder = static.DataFeeder([static.data("x", [None, 2]), static.data("y", [None, 1], "int64")])
    >>> feeder.feed([([1.0, 2.0], 0), ([3.0, 4.0], 1)])["y"].tolist()
    [[0], [1]]
    """

    @accepts_deprecated("self feed_list place program", place=IGNORED)
    def __init__(self, feed_list: Sequence[Variable | str], *, program: Program | None = None) -> None:
        from .program import default_main_program

        owner = default_main_program() if program is None else program
        self._variables = [owner.var(v) if isinstance(v, str) else v for v in feed_list]

    def feed(self, iterable: Iterable[Sequence[Any]]) -> dict[str, Any]:
        """Returns the arrays of these rows by variable name. Raises ValueError for a row with other fields."""
        rows = list(iterable)
        for at, row in enumerate(rows):
            if len(row) != len(self._variables):
                raise ValueError(f"row {at} has {len(row)} fields, expected {len(self._variables)}")
        named: dict[str, Any] = {}
        for at, variable in enumerate(self._variables):
            column = [row[at] for row in rows]
            if variable.lod_level:
                named[variable.name] = create_lod_tensor(column)
            else:
                dtype = np.int64 if variable.dtype == "int64" else np.float32
                named[variable.name] = np.asarray(column, dtype=dtype)
                if elements_per_row(variable.shape) is not None:
                    named[variable.name] = named[variable.name].reshape([len(rows), *variable.shape[1:]])
        return named
