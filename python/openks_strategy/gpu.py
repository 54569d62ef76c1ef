"""Strategies of training with workers only."""

from openks_distributed.gpu.strategy import (
    CollectiveMode,
    GPUStrategy,
    GradAllreduce,
    HierarchicalAllreduce,
    LocalSGD,
    NCCL2Mode,
    NumThreadsConfig,
)

__all__ = [
    "CollectiveMode",
    "GPUStrategy",
    "GradAllreduce",
    "HierarchicalAllreduce",
    "LocalSGD",
    "NCCL2Mode",
    "NumThreadsConfig",
]
