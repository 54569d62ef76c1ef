"""Readers: functions without arguments that return an iterator of rows.

>>> list(batch(lambda: iter(range(5)), 2)())
[[0, 1], [2, 3], [4]]
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

Reader = Callable[[], Iterator[Any]]


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """Groups rows into lists of `batch_size`; `drop_last` skips a last list that is shorter.

    >>> list(batch(lambda: iter(range(5)), 2, drop_last=True)())
    [[0, 1], [2, 3]]
    """
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
    """Shuffles rows within buffers of `buf_size` rows; a seed fixes the order.

    >>> sorted(shuffle(lambda: iter(range(4)), 4, seed=1)())
    [0, 1, 2, 3]
    """

    def shuffled() -> Iterator[Any]:
        chance = random.Random(seed)
        for rows in batch(reader, buf_size)():
            chance.shuffle(rows)
            yield from rows

    return shuffled


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """Applies a function to the rows of several readers, one row of each at a time.

    >>> list(map_readers(lambda a, b: a + b, lambda: iter([1, 2]), lambda: iter([3, 4]))())
    [4, 6]
    """
    return lambda: map(func, *(reader() for reader in readers))


def chain(*readers: Reader) -> Reader:
    """Reads several readers one after the other.

    >>> list(chain(lambda: iter([1, 2]), lambda: iter([3]))())
    [1, 2, 3]
    """

    def chained() -> Iterator[Any]:
        for reader in readers:
            yield from reader()

    return chained


def firstn(reader: Reader, n: int) -> Reader:
    """Reads the first n rows.

    >>> list(firstn(lambda: iter(range(9)), 2)())
    [0, 1]
    """

    def first() -> Iterator[Any]:
        for at, row in enumerate(reader()):
            if at == n:
                return
            yield row

    return first


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Joins the rows of several readers into one tuple each.

    Raises ValueError, while reading, where one reader ends before another; `check_alignment=False` stops there instead.

    >>> list(compose(lambda: iter([1, 2]), lambda: iter([(3, 4), (5, 6)]))())
    [(1, 3, 4), (2, 5, 6)]
    """
    end = object()

    def composed() -> Iterator[Any]:
        sources = [reader() for reader in readers]
        while True:
            rows = [next(source, end) for source in sources]
            ended = [row is end for row in rows]
            if any(ended):
                if check_alignment and not all(ended):
                    raise ValueError(
                        f"reader {ended.index(True)} of `compose` ended before reader {ended.index(False)}"
                    )
                return
            yield sum((row if isinstance(row, tuple) else (row,) for row in rows), ())

    return composed


def cache(reader: Reader) -> Reader:
    """Reads the rows once and keeps them in memory for later passes.

    >>> once = iter([1, 2])
    >>> cached = cache(lambda: once)
    >>> list(cached()), list(cached())
    ([1, 2], [1, 2])
    """
    kept: list[Any] | None = None

    def cached() -> Iterator[Any]:
        nonlocal kept
        if kept is None:
            kept = list(reader())
        return iter(kept)

    return cached


def buffered(reader: Reader, size: int) -> Reader:
    """Reads up to `size` rows ahead on another thread. An exception of the reader is raised in place of its row.

    >>> list(buffered(lambda: iter(range(4)), 2)())
    [0, 1, 2, 3]
    """
    if size < 1:
        raise ValueError(f"`size` expects at least 1, got {size}")

    def read_ahead() -> Iterator[Any]:
        rows: queue.Queue[tuple[str, Any]] = queue.Queue(size)
        abandoned = threading.Event()

        def put(what: str, row: Any) -> bool:
            while not abandoned.is_set():
                try:
                    rows.put((what, row), timeout=0.1)
                    return True
                except queue.Full:
                    pass
            return False

        def work() -> None:
            try:
                for row in reader():
                    if not put("row", row):
                        return
                put("end", None)
            except BaseException as error:  # raised again by the thread that waits for the row
                put("error", error)

        threading.Thread(target=work, daemon=True).start()
        try:
            while True:
                what, row = rows.get()
                if what == "error":
                    raise row
                if what == "end":
                    return
                yield row
        finally:
            abandoned.set()

    return read_ahead


def xmap_readers(
    mapper: Callable[[Any], Any], reader: Reader, process_num: int, buffer_size: int, order: bool = False
) -> Reader:
    """Applies a function to each row on `process_num` threads, with at most `buffer_size` rows in flight.

    `order` keeps the order of the rows.

    >>> list(xmap_readers(lambda row: row * row, lambda: iter(range(4)), 2, 4, order=True)())
    [0, 1, 4, 9]
    """
    if process_num < 1:
        raise ValueError(f"`process_num` expects at least 1, got {process_num}")

    def mapped() -> Iterator[Any]:
        from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

        with ThreadPoolExecutor(process_num) as pool:
            waiting: list[Future[Any]] = []
            for row in reader():
                waiting.append(pool.submit(mapper, row))
                if len(waiting) >= max(buffer_size, process_num):
                    ready = waiting[0] if order else next(iter(wait(waiting, return_when=FIRST_COMPLETED).done))
                    waiting.remove(ready)
                    yield ready.result()
            for future in waiting:
                yield future.result()

    return mapped
