"""Training with parameter servers: mode sync by default."""

from __future__ import annotations

from typing import Any

import openfleet.fleet as _fleet
from openfleet.compat.paddle.fluid.transpiler import DistributeTranspilerConfig
from openfleet.fleet.optimizer import DistributedOptimizer

from ..base.BaseDistributed import BaseDistributedAlgorithm
from ..base.mode import Mode

CPUDistributedOptimizer = DistributedOptimizer
GeneralDistributedOptimizer = DistributedOptimizer
"""The name in the code of OpenKS; its document has the other one."""


class CPUDistributedAlgorithm(BaseDistributedAlgorithm):
    """The job of this process, with parameter servers."""

    def __init__(self) -> None:
        super().__init__(Mode.TRANSPILER)

    def distributed_optimizer(self, optimizer: Any = None, strategy: Any = None) -> DistributedOptimizer:
        """Returns an optimizer that trains in the mode of a strategy; sync by default."""
        return _fleet.distributed_optimizer(optimizer, DistributeTranspilerConfig() if strategy is None else strategy)


algorithm = CPUDistributedAlgorithm()
__all__ = ["CPUDistributedAlgorithm", "CPUDistributedOptimizer", "GeneralDistributedOptimizer", "algorithm"]
