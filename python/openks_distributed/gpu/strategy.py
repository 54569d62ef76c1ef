"""Strategies of training among workers only, by the names of OpenKS. They are kept until that training follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .GPUDistributed import DistributedStrategy


class NumThreadsConfig:
    """Threads of a worker."""

    def __init__(self, num_threads: int = 1) -> None:
        self.options: dict[str, Any] = {"num_threads": num_threads}


class NCCL2Mode:
    """Gradients are reduced by the library of the devices."""

    options: dict[str, Any] = {"mode": "nccl2"}


class CollectiveMode:
    """Gradients are reduced by ops of the program."""

    options: dict[str, Any] = {"mode": "collective"}


class GradAllreduce:
    """Gradients are reduced at every step."""

    options: dict[str, Any] = {"mode": "collective", "collective_mode": "grad_allreduce"}


class LocalSGD:
    """Parameters are averaged now and then."""

    options: dict[str, Any] = {"mode": "collective", "collective_mode": "local_sgd", "use_local_sgd": True}


class HierarchicalAllreduce:
    """Gradients are reduced within a machine first."""

    options: dict[str, Any] = {"use_hierarchical_allreduce": True}


class GPUStrategy:
    """Configurations of a worker and of the job, of which later ones win."""

    def __init__(self, exec_config: Sequence[Any] = (), dist_config: Sequence[Any] = ()) -> None:
        self._configs = [*exec_config, *dist_config]
        for config in self._configs:
            if not hasattr(config, "options"):
                raise TypeError(f"`GPUStrategy` expects configurations, got {type(config).__name__}")

    def config(self) -> DistributedStrategy:
        """As `distributed_optimizer` takes it."""
        strategy = DistributedStrategy()
        for config in self._configs:
            for name, value in config.options.items():
                setattr(strategy, name, value)
        return strategy

    def setup_optimizer(self, algorithm: Any, optimizer: Any) -> Any:
        """The optimizer of a job that would train this way."""
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
