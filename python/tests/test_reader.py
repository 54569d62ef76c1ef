"""Readers and their errors."""

import itertools
import threading

import pytest

from openfleet import reader


def numbers(count):
    return lambda: iter(range(count))


def test_readers_can_be_composed():
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


def test_an_error_of_a_buffered_reader_is_raised_in_place_of_its_row():
    rows = reader.buffered(failing, 4)()
    assert next(rows) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(rows)
    with pytest.raises(OSError, match="the disk is gone"):
        list(reader.xmap_readers(lambda x: x, failing, 2, 2)())


def test_closing_a_buffered_reader_stops_its_thread():
    before = set(threading.enumerate())
    rows = reader.buffered(itertools.count, 2)()
    assert [next(rows), next(rows)] == [0, 1]
    rows.close()
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in started)


def test_xmap_readers_returns_all_rows_and_keeps_the_order_on_request():
    squares = [x * x for x in range(50)]
    assert list(reader.xmap_readers(lambda x: x * x, numbers(50), 4, 8, order=True)()) == squares
    assert sorted(reader.xmap_readers(lambda x: x * x, numbers(50), 4, 8)()) == squares
