"""Creates strategies by name."""

from __future__ import annotations

from openfleet import compat
from openfleet.compat.paddle.fluid.transpiler import DistributeTranspilerConfig


def _config(**options: object) -> DistributeTranspilerConfig:
    config = DistributeTranspilerConfig()
    for name, value in options.items():
        setattr(config, name, value)
    return config


class StrategyFactory:
    """Creates strategies by name.

    >>> print(StrategyFactory.create_geo_strategy(400))
    mode geo: push differences every 400 batches, dense values averaged every 10 batches
    """

    @staticmethod
    def create_sync_strategy() -> DistributeTranspilerConfig:
        """Sync: all live workers wait for each other at every step."""
        return _config(sync_mode=True)

    @staticmethod
    def create_half_async_strategy() -> DistributeTranspilerConfig:
        """Half-async: a worker waits for its own threads only."""
        return _config(sync_mode=False)

    @staticmethod
    def create_async_strategy() -> DistributeTranspilerConfig:
        """Async: workers do not wait for each other."""
        return _config(sync_mode=False, runtime_split_send_recv=True)

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> DistributeTranspilerConfig:
        """Geo: workers train on copies and exchange differences every `update_frequency` batches."""
        return _config(
            sync_mode=False,
            runtime_split_send_recv=True,
            geo_sgd_mode=True,
            geo_sgd_need_push_nums=update_frequency,
        )


__all__ = ["StrategyFactory"]
__getattr__ = compat.absent(__name__, __all__)
