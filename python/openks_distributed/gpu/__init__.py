"""Training among workers only, which follows later."""

from . import GPUDistributed
from .GPUDistributed import GPUDistributedAlgorithm, GPUDistributedOptimizer, algorithm

__all__ = ["GPUDistributed", "GPUDistributedAlgorithm", "GPUDistributedOptimizer", "algorithm"]
