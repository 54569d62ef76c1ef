"""Training with workers only: it can be set up, but `minimize` is not available yet."""

from __future__ import annotations

from typing import Any

from openfleet.compat.paddle.fluid.incubate.fleet.collective import CollectiveOptimizer, DistributedStrategy

from ..base.BaseDistributed import BaseDistributedAlgorithm
from ..base.mode import Mode

GPUDistributedOptimizer = CollectiveOptimizer


class GPUDistributedAlgorithm(BaseDistributedAlgorithm):
    """The job of this process, with workers only."""

    def __init__(self) -> None:
        super().__init__(Mode.COLLECTIVE)

    def distributed_optimizer(self, optimizer: Any = None, strategy: Any = None) -> CollectiveOptimizer:
        """Returns an optimizer whose `minimize` is not available yet."""
        return CollectiveOptimizer(optimizer, strategy)


algorithm = GPUDistributedAlgorithm()
__all__ = ["DistributedStrategy", "GPUDistributedAlgorithm", "GPUDistributedOptimizer", "algorithm"]
