"""Training with parameter servers."""

from . import CPUDistributed, strategy
from .CPUDistributed import CPUDistributedAlgorithm, CPUDistributedOptimizer, algorithm

__all__ = ["CPUDistributed", "CPUDistributedAlgorithm", "CPUDistributedOptimizer", "algorithm", "strategy"]
