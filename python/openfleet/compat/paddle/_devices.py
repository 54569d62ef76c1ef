"""PaddlePaddle's devices. Nothing here computes on a GPU: a script that asks for one is told that it trains on CPUs."""

from __future__ import annotations

import sys

from openfleet.static import CPUPlace

_is_said = False


def say_cpu(asked: str) -> None:
    """Prints, once per process, that training runs on CPUs although the script asks for something else."""
    global _is_said
    if not _is_said:
        _is_said = True
        print(f"openfleet: {asked}: there is no GPU support here, so this process trains on CPUs", file=sys.stderr)


class CUDAPlace(CPUPlace):
    """Stands for the CPU."""

    def __init__(self, id: int = 0) -> None:
        say_cpu(f"the script asks for `{type(self).__name__}({id})`")
        self._id = id

    def get_device_id(self) -> int:
        """Returns the number that the script gave."""
        return self._id


class CUDAPinnedPlace(CPUPlace):
    """Stands for the CPU."""


class XPUPlace(CUDAPlace):
    """Stands for the CPU."""


class CustomPlace(CPUPlace):
    """Stands for the CPU."""

    def __init__(self, dev_type: str, id: int = 0) -> None:
        say_cpu(f"the script asks for `CustomPlace({dev_type!r}, {id})`")


def is_compiled_with_custom_device(device_type: str) -> bool:
    """Returns False: there are only CPUs."""
    return False


def cuda_places(device_ids: list[int] | None = None) -> list[CPUPlace]:
    """Returns one place per device that the script names, one by default. All of them stand for the CPU."""
    return [CUDAPlace(number) for number in device_ids or [0]]
