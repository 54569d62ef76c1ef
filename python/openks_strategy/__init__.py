"""Strategies by the import path of OpenKS: `openks_strategy.cpu` and `openks_strategy.gpu`."""

from . import cpu, gpu

__all__ = ["cpu", "gpu"]
