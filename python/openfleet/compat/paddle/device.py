"""`paddle.device`: the CPU is the only device."""

from __future__ import annotations

from openfleet import compat
from openfleet.static import CPUPlace

from ._devices import XPUPlace, is_compiled_with_custom_device
from ._devices import say_cpu as _say_cpu
from .fluid.framework import is_compiled_with_cuda

is_compiled_with_xpu = is_compiled_with_rocm = is_compiled_with_cinn = is_compiled_with_cuda
is_compiled_with_ipu = is_compiled_with_npu = is_compiled_with_cuda


def set_device(device: str) -> CPUPlace:
    """The CPU is the only device: a script that asks for a GPU trains on the CPU."""
    if device != "cpu":
        _say_cpu(f"the script asks for `set_device({device!r})`")
    return CPUPlace()


def get_device() -> str:
    """The CPU is the only device."""
    return "cpu"


def get_cudnn_version() -> None:
    """Returns None: there is no GPU."""


def get_all_device_type() -> list[str]:
    """The CPU is the only device."""
    return ["cpu"]


get_available_device = get_all_device_type


def get_all_custom_device_type() -> list[str]:
    """Returns no device."""
    return []


get_available_custom_device = get_all_custom_device_type

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("CPUPlace", "annotations", "compat")]
__getattr__ = compat.absent(__name__, __all__)
