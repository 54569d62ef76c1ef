"""The `fleet` of the first version: as the second's, but sync where no strategy is given."""

from __future__ import annotations

from typing import Any

import openfleet.fleet as _fleet
from openfleet import compat
from openfleet.compat.paddle.fluid.incubate.fleet.base.fleet_base import Fleet as _Base
from openfleet.compat.paddle.fluid.transpiler import DistributeTranspilerConfig
from openfleet.fleet.optimizer import DistributedOptimizer

from .distributed_strategy import StrategyFactory

TranspilerOptimizer = DistributedOptimizer


class DistributedTranspiler(_Base):
    """The one job of this process, with servers."""

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> DistributedOptimizer:
        """Chooses how the job trains."""
        return _fleet.distributed_optimizer(optimizer, DistributeTranspilerConfig() if strategy is None else strategy)


fleet = DistributedTranspiler()
__all__ = ["DistributeTranspilerConfig", "DistributedTranspiler", "StrategyFactory", "TranspilerOptimizer", "fleet"]
__getattr__ = compat.absent(__name__, __all__)
