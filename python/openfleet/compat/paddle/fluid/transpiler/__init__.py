"""`fluid.transpiler`."""

from openfleet import compat

from . import ps_dispatcher
from .distribute_transpiler import DistributeTranspilerConfig, HashName, RoundRobin

__all__ = ["DistributeTranspilerConfig", "HashName", "RoundRobin", "ps_dispatcher"]
__getattr__ = compat.absent(__name__, __all__)
