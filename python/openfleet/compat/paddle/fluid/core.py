"""`fluid.core`: the few names of PaddlePaddle's native module that scripts use."""

from openfleet import Error as EnforceNotMet
from openfleet import compat
from openfleet.static import CPUPlace, LoDTensor, Scope

from .._devices import CUDAPlace, is_compiled_with_custom_device
from .._feeding import EOFException
from .framework import is_compiled_with_cuda


class VarDesc:
    """The kinds and dtypes of variables."""

    class VarType:
        """Dtypes by PaddlePaddle's names, and the kind of every variable."""

        BOOL, INT8, UINT8, INT16, INT32, INT64 = "bool", "int8", "uint8", "int16", "int32", "int64"
        FP16, BF16, FP32, FP64 = "float16", "bfloat16", "float32", "float64"
        LOD_TENSOR, SELECTED_ROWS, READER = "lod_tensor", "selected_rows", "reader"


def get_cuda_device_count() -> int:
    """Returns 0: there is no GPU."""
    return 0


__all__ = [
    "CPUPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "LoDTensor",
    "Scope",
    "VarDesc",
    "get_cuda_device_count",
    "is_compiled_with_cuda",
    "is_compiled_with_custom_device",
]
__getattr__ = compat.absent(__name__, __all__)
