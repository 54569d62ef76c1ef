"""Unique names: `fc_0`, `fc_1`, ..., one counter a word.

>>> from openfleet.static import unique_name
>>> with unique_name.guard():
...     unique_name.generate("fc"), unique_name.generate("fc")
('fc_0', 'fc_1')
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .program import _Net, _net, _pushed


def generate(key: str) -> str:
    """`key_N`, unique within the current generator."""
    return _net().native.unique_name(key)


@contextmanager
def guard(new_generator: object | None = None) -> Iterator[None]:
    """Names count from 0 as long as it lasts: a second network built the same way has the same parameter names."""
    if new_generator is not None:
        raise NotImplementedError("`new_generator` of `unique_name.guard`: names count from 0 under their own words")
    net = _net()
    with _pushed(_Net(net.native.with_fresh_names(), net.main, net.startup)):
        yield
