"""The names of OpenKS for what `openfleet.fleet` does: one factory, a parameter server on CPUs, collectives.

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
    """Gives the job of this process by how it trains."""

    @staticmethod
    def instantiation(flag: int | str = 0) -> BaseDistributedAlgorithm:
        """0 or "cpu": with parameter servers. 1 or "gpu": workers among themselves."""
        known = {0: _cpu, "cpu": _cpu, 1: _gpu, "gpu": _gpu}
        if isinstance(flag, bool) or not isinstance(flag, (int, str)) or flag not in known:
            raise ValueError(f'`flag` expects 0 or "cpu", 1 or "gpu", got {flag!r}')
        return known[flag]
