"""The `fleet` of PaddlePaddle 1.x. Unlike that of 2.x it trains in mode sync by default."""

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
    """The job of this process, with servers."""

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> DistributedOptimizer:
        """Returns an optimizer that trains in the mode of a strategy; sync by default."""
        return _fleet.distributed_optimizer(optimizer, DistributeTranspilerConfig() if strategy is None else strategy)


fleet = DistributedTranspiler()
__all__ = ["DistributeTranspilerConfig", "DistributedTranspiler", "StrategyFactory", "TranspilerOptimizer", "fleet"]
__getattr__ = compat.absent(__name__, __all__)
