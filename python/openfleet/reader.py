"""Readers: functions that give an iterator of rows.

>>> list(batch(lambda: iter(range(5)), 2)())
[[0, 1], [2, 3], [4]]
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

Reader = Callable[[], Iterator[Any]]


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """Rows in lists of `batch_size`."""
    if batch_size < 1:
        raise ValueError(f"`batch_size` expects at least 1, got {batch_size}")

    def batches() -> Iterator[list[Any]]:
        rows: list[Any] = []
        for row in reader():
            rows.append(row)
            if len(rows) == batch_size:
                yield rows
                rows = []
        if rows and not drop_last:
            yield rows

    return batches


def shuffle(reader: Reader, buf_size: int, seed: int | None = None) -> Reader:
    """Rows in random order, `buf_size` of them at a time."""

    def shuffled() -> Iterator[Any]:
        chance = random.Random(seed)
        for rows in batch(reader, buf_size)():
            chance.shuffle(rows)
            yield from rows

    return shuffled


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """What a function makes of the rows of several readers.

    >>> list(map_readers(lambda a, b: a + b, lambda: iter([1, 2]), lambda: iter([3, 4]))())
    [4, 6]
    """
    return lambda: map(func, *(reader() for reader in readers))


def chain(*readers: Reader) -> Reader:
    """The rows of one reader after the other."""

    def chained() -> Iterator[Any]:
        for reader in readers:
            yield from reader()

    return chained


def firstn(reader: Reader, n: int) -> Reader:
    """The first rows."""

    def first() -> Iterator[Any]:
        for at, row in enumerate(reader()):
            if at == n:
                return
            yield row

    return first
