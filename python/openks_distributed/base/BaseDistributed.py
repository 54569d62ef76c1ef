"""Base classes of both kinds of job."""

from __future__ import annotations

from typing import Any

from openfleet.compat.paddle.fluid.incubate.fleet.base.fleet_base import Fleet
from openfleet.fleet.optimizer import DistributedOptimizer
from openfleet.fleet.role import RoleMakerBase

BaseDistributedOptimizer = DistributedOptimizer
BaseDistribuedOptimizer = BaseDistributedOptimizer
"""The spelling of the document of OpenKS."""


class BaseDistributedAlgorithm(Fleet):
    """The job of this process."""

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Determines the role of this process."""
        super().init(role_maker)

    def distributed_optimizer(self, optimizer: Any = None, strategy: Any = None) -> Any:
        """Returns an optimizer that trains in the mode of a strategy."""
        raise NotImplementedError(f"`distributed_optimizer` of {type(self).__name__}")

    def distributed_optimzier(self, optimizer: Any = None, strategy: Any = None) -> Any:
        """Calls `distributed_optimizer`: the spelling of the document of OpenKS."""
        return self.distributed_optimizer(optimizer, strategy)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


__all__ = ["BaseDistribuedOptimizer", "BaseDistributedAlgorithm", "BaseDistributedOptimizer"]
