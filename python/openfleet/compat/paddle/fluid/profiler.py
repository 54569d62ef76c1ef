"""`fluid.profiler`. The time of each op is printed by `exe.train_from_dataset(debug=True)` instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openfleet import compat
from openfleet.compat._notices import say_once


def start_profiler(state: str = "All", tracer_option: str = "Default") -> None:
    """Has no effect."""
    say_once("the profiler has no effect: `exe.train_from_dataset(debug=True)` prints the time of each op")


def stop_profiler(sorted_key: str | None = None, profile_path: str = "") -> None:
    """Has no effect."""


def reset_profiler() -> None:
    """Has no effect."""


@contextmanager
def profiler(state: str = "All", sorted_key: Any = None, profile_path: str = "", *_: Any, **__: Any) -> Iterator[None]:
    """Has no effect."""
    start_profiler(state)
    yield


__all__ = ["profiler", "reset_profiler", "start_profiler", "stop_profiler"]
__getattr__ = compat.absent(__name__, __all__)
