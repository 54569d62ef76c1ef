"""Strategies: the mode of a job and its settings, checked when they are set.

>>> strategy = DistributedStrategy()
>>> strategy.a_sync = True
>>> strategy.a_sync_configs = {"k_steps": 400}
>>> print(strategy)
mode geo: push differences every 400 batches, residual flushed at save and stop
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _native


class DistributedStrategy:
    """The mode that a job trains in.

    `a_sync=False` is sync; `a_sync=True` is async, or geo with `k_steps` in `a_sync_configs`; `staleness=n` is hybrid,
    with at most n batches in flight. `print(strategy)` says what the settings mean.

    Raises:
        AttributeError: There is no such setting; the hint names the nearest one.
        ValueError: A value is out of range.

    >>> from openfleet import fleet
    >>> strategy = fleet.DistributedStrategy()
    >>> strategy.a_sync = False
    >>> str(strategy).startswith("mode sync")
    True
    """

    _options: _native.Options
    _properties = ("a_sync", "a_sync_configs", "staleness", "half_async")

    def __init__(self) -> None:
        object.__setattr__(self, "_options", _native.Options())

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._properties:
            raise AttributeError(
                f"DistributedStrategy has no `{name}`\n\nhint: {_native.nearest(name, list(self._properties))}"
            )
        object.__setattr__(self, name, value)

    @property
    def a_sync(self) -> bool:
        """Whether workers train without waiting for each other."""
        written = self._options.get("a_sync")
        return True if written is None else written

    @a_sync.setter
    def a_sync(self, value: bool) -> None:
        self._options.set("a_sync", value)

    @property
    def staleness(self) -> int | None:
        """0 is sync, n hybrid with at most n batches in flight, -1 async; None if it was not set."""
        return self._options.get("staleness")

    @staleness.setter
    def staleness(self, value: int) -> None:
        self._options.set("staleness", value)

    @property
    def half_async(self) -> bool:
        """Whether a worker waits for its own threads only."""
        return bool(self._options.get("half_async"))

    @half_async.setter
    def half_async(self, value: bool) -> None:
        self._options.set("half_async", value)

    @property
    def a_sync_configs(self) -> dict[str, Any]:
        """The settings that were set, by name."""
        written = {name: self._options.get(name) for name in _native.Options.names()}
        return {name: value for name, value in written.items() if value is not None and name != "a_sync"}

    @a_sync_configs.setter
    def a_sync_configs(self, configs: Mapping[str, Any]) -> None:
        if not isinstance(configs, Mapping):
            raise TypeError(f"`a_sync_configs` expects a dict, got {type(configs).__name__}")
        # All or nothing: an unknown name leaves the strategy unchanged.
        options = self._options.copy()
        for name, value in configs.items():
            options.set(name, value)
        object.__setattr__(self, "_options", options)

    def __str__(self) -> str:
        return self._options.describe()

    def __repr__(self) -> str:
        return f"<DistributedStrategy {self.a_sync_configs}>"

    def __deepcopy__(self, memo: Any) -> DistributedStrategy:
        copied = DistributedStrategy()
        object.__setattr__(copied, "_options", self._options.copy())
        return copied
