"""Training with workers only."""

from . import GPUDistributed, strategy
from .GPUDistributed import GPUDistributedAlgorithm, GPUDistributedOptimizer, algorithm

__all__ = ["GPUDistributed", "GPUDistributedAlgorithm", "GPUDistributedOptimizer", "algorithm", "strategy"]
