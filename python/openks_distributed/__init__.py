"""The API of OpenKS on top of `openfleet.fleet`: a factory of jobs with parameter servers or with workers only.

>>> KSDistributedFactory.instantiation(flag=0)
<CPUDistributedAlgorithm>
"""

from __future__ import annotations

from .base.BaseDistributed import BaseDistributedAlgorithm
from .cpu.CPUDistributed import CPUDistributedAlgorithm
from .cpu.CPUDistributed import algorithm as _cpu
from .gpu.GPUDistributed import GPUDistributedAlgorithm
from .gpu.GPUDistributed import algorithm as _gpu

__all__ = ["CPUDistributedAlgorithm", "GPUDistributedAlgorithm", "KSDistributedFactory"]


class KSDistributedFactory:
    """Creates the job of this process."""

    @staticmethod
    def instantiation(flag: int | str = 0) -> BaseDistributedAlgorithm:
        """Returns the job of this process: with parameter servers for 0 or "cpu", with workers only for 1 or "gpu".

        Raises:
            ValueError: `flag` is something else.
        """
        known = {0: _cpu, "cpu": _cpu, 1: _gpu, "gpu": _gpu}
        if isinstance(flag, bool) or not isinstance(flag, (int, str)) or flag not in known:
            raise ValueError(f'`flag` expects 0 or "cpu", 1 or "gpu", got {flag!r}')
        return known[flag]
