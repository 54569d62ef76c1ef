"""Strategies of training with workers only, by the names of OpenKS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .GPUDistributed import DistributedStrategy


class NumThreadsConfig:
    """Has no effect: a worker trains with one thread, and more workers use more cores."""

    def __init__(self, num_threads: int = 1) -> None:
        self.options: dict[str, Any] = {"num_threads": num_threads}


class NCCL2Mode:
    """Averages gradients at every step."""

    options: dict[str, Any] = {"mode": "nccl2"}


class CollectiveMode:
    """Averages gradients at every step."""

    options: dict[str, Any] = {"mode": "collective"}


class GradAllreduce:
    """Averages gradients at every step."""

    options: dict[str, Any] = {"mode": "collective", "collective_mode": "grad_allreduce"}


class LocalSGD:
    """Averages parameters after every step, as PaddlePaddle 1.x does."""

    options: dict[str, Any] = {"mode": "collective", "collective_mode": "local_sgd", "use_local_sgd": True}


class HierarchicalAllreduce:
    """Has no effect: one ring connects all workers."""

    options: dict[str, Any] = {"use_hierarchical_allreduce": True}


class GPUStrategy:
    """Combines configurations of a worker and of the job; later ones override earlier ones."""

    def __init__(self, exec_config: Sequence[Any] = (), dist_config: Sequence[Any] = ()) -> None:
        self._configs = [*exec_config, *dist_config]
        for config in self._configs:
            if not hasattr(config, "options"):
                raise TypeError(f"`GPUStrategy` expects configurations, got {type(config).__name__}")

    def config(self) -> DistributedStrategy:
        """Returns the strategy for `distributed_optimizer`."""
        strategy = DistributedStrategy()
        for config in self._configs:
            for name, value in config.options.items():
                setattr(strategy, name, value)
        return strategy

    def setup_optimizer(self, algorithm: Any, optimizer: Any) -> Any:
        """Returns an optimizer with this strategy."""
        return algorithm.distributed_optimizer(optimizer, self.config())


__all__ = [
    "CollectiveMode",
    "GPUStrategy",
    "GradAllreduce",
    "HierarchicalAllreduce",
    "LocalSGD",
    "NCCL2Mode",
    "NumThreadsConfig",
]
