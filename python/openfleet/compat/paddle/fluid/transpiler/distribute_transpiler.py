"""`DistributeTranspilerConfig`: the strategy of PaddlePaddle 1.x.

>>> config = DistributeTranspilerConfig()
>>> print(config)
mode sync: every step waits for all live workers and applies the mean of their gradients
"""

from __future__ import annotations

from typing import Any

from openfleet import _native, compat
from openfleet.compat._notices import say_once

from .ps_dispatcher import HashName, RoundRobin


class DistributeTranspilerConfig:
    """The mode of a job, sync by default. Options are checked when they are set, and together when they are used."""

    _defaults = {
        "sync_mode": True,
        "runtime_split_send_recv": False,
        "slice_var_up": True,
        "min_block_size": 8192,
        "wait_port": True,
        "geo_sgd_mode": False,
        "geo_sgd_need_push_nums": 100,
        "half_async": False,
        "split_method": None,
    }
    # Members of PaddlePaddle that are not options here: accepted with their default, refused with the hint or else said
    # to have no effect.
    _others: dict[str, tuple[Any, str | None]] = {
        "completely_not_async": (False, None),
        "enable_dc_asgd": (False, "gradients of async mode are not corrected; `sync_mode = True` needs no correction"),
        "hierarchical_allreduce_inter_nranks": (0, None),
        "mode": ("pserver", "collective jobs are those of `fluid.incubate.fleet.collective`"),
        "nccl_comm_num": (1, None),
        "print_log": (False, None),
        "use_hierarchical_allreduce": (False, None),
    }

    def __init__(self) -> None:
        object.__setattr__(self, "_options", _native.Options(transpiler=True))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._others:
            self._set_other(name, value)
            return
        if name not in self._defaults:
            nearest = _native.nearest(name, [*self._defaults, *self._others])
            raise NotImplementedError(f"DistributeTranspilerConfig has no `{name}`\n\nhint: {nearest}")
        if name == "split_method":
            value = "RoundRobin" if value is None else getattr(value, "__name__", value)
        self._options.set(name, value)

    def _set_other(self, name: str, value: Any) -> None:
        default, hint = self._others[name]
        if value != default and hint is not None:
            raise NotImplementedError(f"`{name} = {value!r}` of DistributeTranspilerConfig\n\nhint: {hint}")
        if value != default:
            say_once(f"`{name}` of DistributeTranspilerConfig has no effect")
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        if name in self._others:
            return self._others[name][0]
        if name not in self._defaults:
            raise AttributeError(name)
        written = self._options.get(name)
        return self._defaults[name] if written is None else written

    def __str__(self) -> str:
        return self._options.describe()


__all__ = ["DistributeTranspilerConfig", "HashName", "RoundRobin"]
__getattr__ = compat.absent(__name__, __all__)
