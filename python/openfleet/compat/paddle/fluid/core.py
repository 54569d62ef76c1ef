"""`fluid.core`: the few names of PaddlePaddle's native module that scripts use."""

from openfleet import compat
from openfleet.static import CPUPlace, LoDTensor, Scope

from .._devices import CUDAPlace, is_compiled_with_custom_device
from .._feeding import EOFException
from .framework import is_compiled_with_cuda

__all__ = [
    "CPUPlace",
    "CUDAPlace",
    "EOFException",
    "LoDTensor",
    "Scope",
    "is_compiled_with_cuda",
    "is_compiled_with_custom_device",
]
__getattr__ = compat.absent(__name__, __all__)
