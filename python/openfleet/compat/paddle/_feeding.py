"""Loaders that feed a program themselves: `exe.run(program)` without a feed takes their next batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from openfleet.static import Program


class EOFException(Exception):
    """A loader that feeds a program has no more batches. Call its `reset()`."""


class _Pass:
    """The loaders of one program, with the batches that are left of each in this pass."""

    def __init__(self) -> None:
        self.loaders: list[Any] = []
        self.started: dict[int, Iterator[dict[str, Any]]] = {}


_passes: WeakKeyDictionary[Program, _Pass] = WeakKeyDictionary()


def belongs_to(loader: Any, program: Program) -> None:
    """Registers a loader for the program that it feeds."""
    _passes.setdefault(program, _Pass()).loaders.append(loader)


def copies(program: Program, copy: Program) -> None:
    """Lets a copy of a program take its batches from the same loaders."""
    if program in _passes:
        _passes[copy] = _passes[program]


def start(loader: Any, feeds: Iterator[dict[str, Any]]) -> None:
    """Begins a pass over the batches of a loader."""
    found = _pass_of(loader)
    if id(loader) in found.started:
        raise RuntimeError("the loader has been started already: call `reset()` first")
    found.started[id(loader)] = feeds


def reset(loader: Any) -> None:
    """Ends the pass of a loader."""
    feeds = _pass_of(loader).started.pop(id(loader), None)
    close = getattr(feeds, "close", None)
    if close is not None:
        close()


def next_feed(program: Program) -> dict[str, Any] | None:
    """The next batch of all loaders of a program, None if it has none. Raises EOFException after the last batch."""
    found = _passes.get(program)
    if found is None:
        return None
    feed: dict[str, Any] = {}
    for loader in found.loaders:
        if id(loader) not in found.started:
            raise RuntimeError("`start()` of the loader must be called before `exe.run` takes its batches")
        try:
            feed.update(next(found.started[id(loader)]))
        except StopIteration:
            raise EOFException("there is no next batch: call `reset()` of the loader") from None
    return feed


def _pass_of(loader: Any) -> _Pass:
    for found in _passes.values():
        if loader in found.loaders:
            return found
    raise RuntimeError("`start` and `reset` are for loaders with `iterable=False`: iterate over this one")
