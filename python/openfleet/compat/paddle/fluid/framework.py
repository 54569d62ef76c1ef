"""`fluid.framework`."""

from __future__ import annotations

from typing import Any

from openfleet import compat
from openfleet.static import CPUPlace, Program, Variable, default_main_program, default_startup_program, program_guard


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


__all__ = [
    "Program",
    "Variable",
    "cpu_places",
    "default_main_program",
    "default_startup_program",
    "in_dygraph_mode",
    "is_compiled_with_cuda",
    "name_scope",
    "program_guard",
]
__getattr__ = compat.absent(__name__, __all__)
