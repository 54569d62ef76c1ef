"""The classes that both ways to train derive from."""

from __future__ import annotations

from typing import Any

from openfleet.compat.paddle.fluid.incubate.fleet.base.fleet_base import Fleet
from openfleet.fleet.optimizer import DistributedOptimizer
from openfleet.fleet.role import RoleMakerBase

BaseDistributedOptimizer = DistributedOptimizer
BaseDistribuedOptimizer = BaseDistributedOptimizer
"""As the document spells it."""


class BaseDistributedAlgorithm(Fleet):
    """The one job of this process."""

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Finds out what this process is."""
        super().init(role_maker)

    def distributed_optimizer(self, optimizer: Any = None, strategy: Any = None) -> Any:
        """Chooses how the job trains."""
        raise NotImplementedError(f"`distributed_optimizer` of {type(self).__name__}")

    def distributed_optimzier(self, optimizer: Any = None, strategy: Any = None) -> Any:
        """`distributed_optimizer`, as the document spells it."""
        return self.distributed_optimizer(optimizer, strategy)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


__all__ = ["BaseDistribuedOptimizer", "BaseDistributedAlgorithm", "BaseDistributedOptimizer"]
