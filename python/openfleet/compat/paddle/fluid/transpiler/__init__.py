"""`fluid.transpiler`."""

from .distribute_transpiler import DistributeTranspilerConfig, HashName, RoundRobin

__all__ = ["DistributeTranspilerConfig", "HashName", "RoundRobin"]
