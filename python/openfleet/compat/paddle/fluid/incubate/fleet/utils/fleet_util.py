"""`FleetUtil`: what a job prints and counts."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

import openfleet.fleet as _fleet
from openfleet import _native, compat
from openfleet.fleet import metrics as _metrics
from openfleet.static import Scope, global_scope

_logger = logging.getLogger(__name__)


class FleetUtil:
    """Prints on the first worker, and reads and clears the counters of `auc`.

    Of its other methods in PaddlePaddle, those that save belong to `fleet`: `fleet.save_persistables` and others.
    """

    def __init__(self, mode: str = "pslib") -> None:
        if mode not in ("pslib", "transpiler"):
            raise ValueError(f"`mode` of FleetUtil expects `pslib` or `transpiler`, got `{mode}`")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = [one for one in vars(FleetUtil) if not one.startswith("_")]

        def missing(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"`FleetUtil.{name}` is not available\n\nhint: {_native.nearest(name, known)}")

        return missing

    def rank0_print(self, s: str) -> None:
        """Prints on the first worker."""
        if _fleet.is_first_worker():
            print(s, flush=True)

    def rank0_info(self, s: str) -> None:
        """Logs on the first worker."""
        if _fleet.is_first_worker():
            _logger.info(s)

    def rank0_error(self, s: str) -> None:
        """Logs an error on the first worker."""
        if _fleet.is_first_worker():
            _logger.error(s)

    def set_zero(self, var_name: str, scope: Scope | None = None, place: Any = None, param_type: str = "int64") -> None:
        """Sets a value of a scope to zeros."""
        tensor = (global_scope() if scope is None else scope).var(var_name).get_tensor()
        tensor.set(np.zeros(tensor.shape(), param_type))

    def get_global_auc(
        self, scope: Scope | None = None, stat_pos: str = "_generated_var_2", stat_neg: str = "_generated_var_3"
    ) -> float:
        """Returns the AUC over all workers. Every worker calls it."""
        return _metrics.auc(stat_pos, stat_neg, scope)

    def print_global_auc(
        self,
        scope: Scope | None = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
        print_prefix: str = "",
    ) -> None:
        """Prints the AUC over all workers on the first one. Every worker calls it."""
        auc = self.get_global_auc(scope, stat_pos, stat_neg)
        self.rank0_print(f"{print_prefix} global auc = {auc}")


__all__ = ["FleetUtil"]
__getattr__ = compat.absent(__name__, __all__)
