"""`DistributeTranspilerConfig`: the strategy of PaddlePaddle 1.x.

>>> config = DistributeTranspilerConfig()
>>> print(config)
mode sync: every step waits for all live workers and applies the mean of their gradients
"""

from __future__ import annotations

from typing import Any

from openfleet import _native, compat


class RoundRobin:
    """Assigns blocks to servers in turn."""


class HashName:
    """Assigns blocks to servers by a hash of their names."""


class DistributeTranspilerConfig:
    """The mode of a job, sync by default. Options are checked when they are set, and together when they are used."""

    _defaults = {
        "sync_mode": True,
        "runtime_split_send_recv": False,
        "slice_var_up": True,
        "min_block_size": 8192,
        "wait_port": True,
        "geo_sgd_mode": False,
        "geo_sgd_need_push_nums": 100,
        "half_async": False,
        "split_method": None,
    }

    def __init__(self) -> None:
        object.__setattr__(self, "_options", _native.Options(transpiler=True))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            nearest = _native.nearest(name, list(self._defaults))
            raise NotImplementedError(f"DistributeTranspilerConfig has no `{name}`\n\nhint: {nearest}")
        if name == "split_method":
            value = "RoundRobin" if value is None else getattr(value, "__name__", value)
        self._options.set(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in self._defaults:
            raise AttributeError(name)
        written = self._options.get(name)
        return self._defaults[name] if written is None else written

    def __str__(self) -> str:
        return self._options.describe()


__all__ = ["DistributeTranspilerConfig", "HashName", "RoundRobin"]
__getattr__ = compat.absent(__name__, __all__)
