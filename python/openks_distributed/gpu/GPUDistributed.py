"""Training with workers only. OpenKS calls it GPU; here it runs on CPUs, and says so once."""

from __future__ import annotations

from typing import Any

import openfleet.fleet as _fleet
from openfleet.compat.paddle._devices import say_cpu
from openfleet.compat.paddle.fluid.incubate.fleet.collective import CollectiveOptimizer, DistributedStrategy
from openfleet.fleet.role import RoleMakerBase

from ..base.BaseDistributed import BaseDistributedAlgorithm
from ..base.mode import Mode

GPUDistributedOptimizer = CollectiveOptimizer


class GPUDistributedAlgorithm(BaseDistributedAlgorithm):
    """The job of this process, with workers only."""

    def __init__(self) -> None:
        super().__init__(Mode.COLLECTIVE)

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Determines the rank of this process."""
        say_cpu("the script asks for GPUs (`flag=1`)")
        _fleet.init(role_maker, is_collective=True)

    def distributed_optimizer(self, optimizer: Any = None, strategy: Any = None) -> CollectiveOptimizer:
        """Returns an optimizer whose gradients are averaged over all workers."""
        return CollectiveOptimizer(optimizer, strategy)


algorithm = GPUDistributedAlgorithm()
__all__ = ["DistributedStrategy", "GPUDistributedAlgorithm", "GPUDistributedOptimizer", "algorithm"]
