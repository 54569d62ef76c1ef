"""Unique names: `fc_0`, `fc_1`, ..., one counter per word.

>>> from openfleet.static import unique_name
>>> with unique_name.guard():
...     unique_name.generate("fc"), unique_name.generate("fc")
('fc_0', 'fc_1')
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .._deprecated import accepts_deprecated, only
from .program import _Net, _net, _pushed


def generate(key: str) -> str:
    """Returns `key_N` with the next free N of the current generator.

    >>> static.unique_name.generate("tower")
    'tower_0'
    """
    return _net().native.unique_name(key)


@accepts_deprecated(
    new_generator=only(
        None,
        "leave it out",
        lambda value: NotImplementedError("`new_generator` of `unique_name.guard`: names count from 0 for each word"),
    )
)
@contextmanager
def guard() -> Iterator[None]:
    """Counts names from 0 again inside the `with` block.

    A second network that is built the same way gets the same parameter names, and so finds the same parameters.

    >>> with static.unique_name.guard():
    ...     static.nn.fc(static.data("x", [None, 2]), size=1).name.startswith("fc_0")
    True
    """
    net = _net()
    with _pushed(_Net(net.native.with_fresh_names(), net.main, net.startup)):
        yield
