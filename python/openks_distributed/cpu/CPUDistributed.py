"""Training with parameter servers: sync unless a strategy says otherwise."""

from __future__ import annotations

from typing import Any

import openfleet.fleet as _fleet
from openfleet.compat.paddle.fluid.transpiler import DistributeTranspilerConfig
from openfleet.fleet.optimizer import DistributedOptimizer

from ..base.BaseDistributed import BaseDistributedAlgorithm
from ..base.mode import Mode

CPUDistributedOptimizer = DistributedOptimizer
GeneralDistributedOptimizer = DistributedOptimizer
"""As the code of OpenKS, rather than its document, calls it."""


class CPUDistributedAlgorithm(BaseDistributedAlgorithm):
    """The one job of this process, with parameter servers."""

    def __init__(self) -> None:
        super().__init__(Mode.TRANSPILER)

    def distributed_optimizer(self, optimizer: Any = None, strategy: Any = None) -> DistributedOptimizer:
        """Chooses how the job trains."""
        return _fleet.distributed_optimizer(optimizer, DistributeTranspilerConfig() if strategy is None else strategy)


algorithm = CPUDistributedAlgorithm()
__all__ = ["CPUDistributedAlgorithm", "CPUDistributedOptimizer", "GeneralDistributedOptimizer", "algorithm"]
