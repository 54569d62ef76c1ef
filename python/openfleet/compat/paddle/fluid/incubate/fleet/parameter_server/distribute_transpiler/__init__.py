"""The `fleet` of the first version: as the second's, but sync where no strategy is given."""

from __future__ import annotations

from typing import Any

import openfleet.fleet as _fleet
from openfleet import compat
from openfleet.compat.paddle.fluid.transpiler import DistributeTranspilerConfig

from .distributed_strategy import StrategyFactory


class _Fleet:
    """The one job of this process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_fleet, name)

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> Any:
        """Chooses how the job trains."""
        return _fleet.distributed_optimizer(optimizer, DistributeTranspilerConfig() if strategy is None else strategy)

    def init_server(self, model_dir: str | None = None) -> None:
        """Prepares a server."""
        _fleet.init_server(model_dir)


fleet = _Fleet()
__all__ = ["DistributeTranspilerConfig", "StrategyFactory", "fleet"]
__getattr__ = compat.absent(__name__, __all__)
