"""`fluid.core`: the few names of PaddlePaddle's native module that scripts use."""

from openfleet import compat
from openfleet.static import CPUPlace, LoDTensor, Scope

from .framework import is_compiled_with_cuda

__all__ = ["CPUPlace", "LoDTensor", "Scope", "is_compiled_with_cuda"]
__getattr__ = compat.absent(__name__, __all__)
