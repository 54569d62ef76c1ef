"""Strategies of training with parameter servers, by the names of OpenKS.

>>> print(CPUStrategy([GeoSGDModelConfig(400)]).config())
mode geo: push differences every 400 batches, dense values averaged every 10 batches
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openfleet.compat.paddle.fluid.transpiler import DistributeTranspilerConfig


class SyncModeConfig:
    """Sync: all workers wait for each other at every step."""

    options: dict[str, Any] = {"sync_mode": True}


class HalfSyncModelConfig:
    """Half-async: a worker waits for its own threads only."""

    options: dict[str, Any] = {"sync_mode": False}


class ASyncModelConfig:
    """Async: workers do not wait for each other."""

    options: dict[str, Any] = {"sync_mode": False, "runtime_split_send_recv": True}


class GeoSGDModelConfig:
    """Geo: workers train on copies and exchange differences every `need_push_nums` batches."""

    def __init__(self, need_push_nums: int = 100) -> None:
        numbers = {"geo_sgd_mode": True, "geo_sgd_need_push_nums": need_push_nums}
        self.options: dict[str, Any] = {**ASyncModelConfig.options, **numbers}


class CPUStrategy:
    """Combines configurations; later ones override earlier ones."""

    def __init__(self, configs: Sequence[Any] = ()) -> None:
        for config in configs:
            if not hasattr(config, "options"):
                raise TypeError(f"`CPUStrategy` expects configurations, got {type(config).__name__}")
        self._configs = list(configs)

    def config(self) -> DistributeTranspilerConfig:
        """Returns the strategy for `distributed_optimizer`."""
        written: dict[str, Any] = {}
        for config in self._configs:
            written.update(config.options)
        resolved = DistributeTranspilerConfig()
        for name, value in written.items():
            setattr(resolved, name, value)
        return resolved

    def setup_optimizer(self, algorithm: Any, optimizer: Any) -> Any:
        """Returns an optimizer that trains with this strategy."""
        return algorithm.distributed_optimizer(optimizer, self.config())


__all__ = ["ASyncModelConfig", "CPUStrategy", "GeoSGDModelConfig", "HalfSyncModelConfig", "SyncModeConfig"]
