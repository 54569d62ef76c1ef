"""`fluid.framework`."""

from __future__ import annotations

from typing import Any

from openfleet import compat
from openfleet.compat._notices import say_once as _say_once
from openfleet.static import CPUPlace, Program, Variable, default_main_program, default_startup_program, program_guard

from .._devices import cuda_places
from .._devices import say_cpu as _say_cpu


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """Returns `device_count` times the CPU, the only device."""
    return [CPUPlace() for _ in range(device_count or 1)]


def is_compiled_with_cuda() -> bool:
    """Returns False."""
    return False


def in_dygraph_mode() -> bool:
    """Returns False: programs are static here."""
    return False


class name_scope:
    """Has no effect: names are unique without it."""

    def __init__(self, prefix: str | None = None) -> None:
        self.prefix = prefix

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


class _ParameterType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Variable) and instance.kind in ("parameter", "table")


class Parameter(Variable, metaclass=_ParameterType):
    """For `isinstance`: the variables that are trained."""


class device_guard:
    """Has no effect: every op runs on the CPU. A script that asks for a GPU is told so."""

    def __init__(self, device: str | None = None) -> None:
        if device is not None and not device.startswith("cpu"):
            _say_cpu(f"the script asks for `device_guard({device!r})`")

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


def Print(
    input: Variable,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_layout: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Variable:
    """Returns its input, and prints nothing: fetch the variable to see its value."""
    _say_once(f"`Print` prints nothing: add `{input.name}` to `fetch_list` to see its value")
    return input


__all__ = [
    "Parameter",
    "Print",
    "Program",
    "Variable",
    "cpu_places",
    "cuda_places",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "in_dygraph_mode",
    "is_compiled_with_cuda",
    "name_scope",
    "program_guard",
]
__getattr__ = compat.absent(__name__, __all__)
