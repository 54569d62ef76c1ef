"""Readers, and what becomes of their errors."""

import itertools
import threading

import pytest

from openfleet import reader


def numbers(count):
    return lambda: iter(range(count))


def test_readers_are_put_together_like_sentences():
    doubled = reader.map_readers(lambda x: 2 * x, reader.chain(numbers(3), numbers(2)))
    assert list(reader.batch(reader.firstn(doubled, 4), 3, drop_last=True)()) == [[0, 2, 4]]
    assert sorted(reader.shuffle(numbers(10), 4, seed=3)()) == list(range(10))
    assert list(reader.shuffle(numbers(10), 4, seed=3)()) != list(range(10))


def test_a_reader_that_ends_early_is_named():
    with pytest.raises(ValueError, match="reader 0 of `compose` ended before reader 1"):
        list(reader.compose(numbers(2), numbers(3))())
    assert len(list(reader.compose(numbers(2), numbers(3), check_alignment=False)())) == 2


def failing():
    yield 1
    raise OSError("the disk is gone")


def test_an_error_behind_a_buffer_comes_where_its_row_would_have():
    rows = reader.buffered(failing, 4)()
    assert next(rows) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(rows)
    with pytest.raises(OSError, match="the disk is gone"):
        list(reader.xmap_readers(lambda x: x, failing, 2, 2)())


def test_a_buffer_that_nobody_reads_to_the_end_lets_its_thread_go():
    before = threading.active_count()
    rows = reader.buffered(itertools.count, 2)()
    assert [next(rows), next(rows)] == [0, 1]
    rows.close()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon:
            thread.join(timeout=5)
    assert threading.active_count() <= before


def test_rows_mapped_by_threads_all_come_and_in_order_where_asked():
    squares = [x * x for x in range(50)]
    assert list(reader.xmap_readers(lambda x: x * x, numbers(50), 4, 8, order=True)()) == squares
    assert sorted(reader.xmap_readers(lambda x: x * x, numbers(50), 4, 8)()) == squares
