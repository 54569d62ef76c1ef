"""Strategies: the mode of a job and its settings, checked when they are set.

>>> strategy = DistributedStrategy()
>>> strategy.a_sync = True
>>> strategy.a_sync_configs = {"k_steps": 400}
>>> print(strategy)
mode geo: push differences every 400 batches, dense values averaged every 10 batches
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from .. import _native

# Options of PaddlePaddle's collective training that do not exist here, each with the nearest thing that does. Their
# default, False, may be set.
_REFUSED = {
    "amp": "parameters and gradients have 32 bits; `fp16_allreduce` sends gradients with 16",
    "auto": "choose the options by name",
    "dgc": "`fp16_allreduce` halves what is sent; `localsgd` sends less often",
    "elastic": "`fleetrun --max_restarts` restarts a failed job from its last checkpoint",
    "fleet_desc_configs": "tables are described by the layers of the program",
    "heter_ccl_mode": "ranks are processes on CPUs",
    "lamb": "use `static.optimizer.Lamb`",
    "lars": "use `static.optimizer.Momentum`",
    "pipeline": "a model has to fit on each rank; servers hold larger tables",
    "qat": "train with 32 bits",
    "recompute": "use a smaller batch with `gradient_merge`",
    "semi_auto": "choose the options by name",
    "sharding": "a model has to fit on each rank; servers hold larger tables",
    "sync_batch_norm": "running statistics are averaged over the ranks at every step",
    "tensor_parallel": "a model has to fit on each rank; servers hold larger tables",
    "use_hierarchical_allreduce": "one ring connects all ranks",
    "without_graph_optimization": "there is nothing to switch off",
}
# Options whose value makes no difference on CPUs.
_WITHOUT_EFFECT = {
    "build_strategy",
    "conv_workspace_size_limit",
    "cudnn_batchnorm_spatial_persistent",
    "cudnn_exhaustive_search",
    "execution_strategy",
    "find_unused_parameters",
    "nccl_comm_num",
    "sync_nccl_allreduce",
}


def _flag(name: str, text: str) -> Any:
    """A property for an option that is true or false."""

    def read(self: DistributedStrategy) -> bool:
        return bool(self._options.get(name))

    def write(self: DistributedStrategy, value: bool) -> None:
        self._options.set(name, value)

    return property(read, write, doc=text)


def _number(name: str, default: int, text: str) -> Any:
    """A property for an option that is a number."""

    def read(self: DistributedStrategy) -> int:
        written = self._options.get(name)
        return default if written is None else int(written)

    def write(self: DistributedStrategy, value: int) -> None:
        self._options.set(name, value)

    return property(read, write, doc=text)


def _configs(names: Mapping[str, str], text: str) -> Any:
    """A property for a dictionary of options, by their names in it."""

    def read(self: DistributedStrategy) -> dict[str, Any]:
        written = {key: self._options.get(name) for key, name in names.items()}
        return {key: value for key, value in written.items() if value is not None}

    def write(self: DistributedStrategy, configs: Mapping[str, Any]) -> None:
        self._set_all(text, configs, names)

    return property(read, write, doc=f"The settings of `{text}` that were set, by name.")


class DistributedStrategy:
    """How a job trains.

    With servers: `a_sync=False` is sync; `a_sync=True` is async, or geo with `k_steps` in `a_sync_configs`;
    `staleness=n` is hybrid, with at most n batches in flight. Without servers, in a collective job: `gradient_merge`,
    `localsgd`, `adaptive_localsgd` and `fp16_allreduce`. `print(strategy)` says what the settings mean.

    Raises:
        AttributeError: There is no such setting; the hint names the nearest one.
        ValueError: A value is out of range.
        NotImplementedError: PaddlePaddle has this setting and OpenFleet does not; the hint names the nearest thing.

    >>> from openfleet import fleet
    >>> strategy = fleet.DistributedStrategy()
    >>> strategy.a_sync = False
    >>> str(strategy).startswith("mode sync")
    True
    >>> strategy = fleet.DistributedStrategy()
    >>> strategy.gradient_merge = True
    >>> strategy.gradient_merge_configs = {"k_steps": 4}
    >>> print(strategy)
    mode collective: gradients are merged over 4 steps (mean), then the mean of all ranks' gradients is applied
    """

    _options: _native.Options
    _properties = (
        "a_sync",
        "a_sync_configs",
        "adaptive_localsgd",
        "adaptive_localsgd_configs",
        "fp16_allreduce",
        "fuse_all_reduce_ops",
        "fuse_grad_size_in_MB",
        "gradient_merge",
        "gradient_merge_configs",
        "gradient_scale_configs",
        "half_async",
        "last_comm_group_size_MB",
        "localsgd",
        "localsgd_configs",
        "staleness",
    )

    def __init__(self) -> None:
        object.__setattr__(self, "_options", _native.Options())

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._properties:
            object.__setattr__(self, name, value)
            return
        switch = name.removesuffix("_configs")
        if switch in _WITHOUT_EFFECT:
            warnings.warn(f"`{name}` of DistributedStrategy has no effect on CPUs", stacklevel=2)
            return
        if switch in _REFUSED and (not value or switch != name):
            return
        if switch in _REFUSED:
            raise NotImplementedError(f"`{name}` of DistributedStrategy\n\nhint: {_REFUSED[switch]}")
        raise AttributeError(
            f"DistributedStrategy has no `{name}`\n\nhint: {_native.nearest(name, list(self._properties))}"
        )

    def _set_all(self, owner: str, configs: Mapping[str, Any], names: Mapping[str, str]) -> None:
        """Sets options by their names in a dictionary: all of them, or none if one is wrong."""
        if not isinstance(configs, Mapping):
            raise TypeError(f"`{owner}` expects a dict, got {type(configs).__name__}")
        options = self._options.copy()
        for key, value in configs.items():
            if key not in names:
                hint = _native.nearest(key, list(names))
                raise ValueError(f"no option of `{owner}` is named `{key}`\n\nhint: {hint}")
            options.set(names[key], value)
        object.__setattr__(self, "_options", options)

    localsgd = _flag("localsgd", "Whether ranks train alone and average their parameters from time to time.")
    localsgd_configs = _configs(
        {"k_steps": "localsgd_k_steps", "begin_step": "localsgd_begin_step"}, "localsgd_configs"
    )
    adaptive_localsgd = _flag("adaptive_localsgd", "Local SGD with a number of steps that follows the loss.")
    adaptive_localsgd_configs = _configs(
        {"init_k_steps": "localsgd_k_steps", "begin_step": "localsgd_begin_step"}, "adaptive_localsgd_configs"
    )
    gradient_merge = _flag("gradient_merge", "Whether gradients are merged over several steps before they are applied.")
    gradient_merge_configs = _configs(
        {"k_steps": "gradient_merge_k_steps", "avg": "gradient_merge_avg"}, "gradient_merge_configs"
    )
    gradient_scale_configs = _configs({"scale_strategy": "gradient_scale"}, "gradient_scale_configs")
    fp16_allreduce = _flag("fp16_allreduce", "Whether gradients are sent with 16 bits.")
    fuse_grad_size_in_MB = _number("fuse_grad_size_in_mb", 32, "The size of a bucket of gradients.")
    last_comm_group_size_MB = _number("last_comm_group_size_mb", 1, "The largest size of the last bucket.")

    @property
    def fuse_all_reduce_ops(self) -> bool:
        """Whether gradients are reduced in buckets, instead of one by one."""
        return self._options.get("fuse_all_reduce_ops") is not False

    @fuse_all_reduce_ops.setter
    def fuse_all_reduce_ops(self, value: bool) -> None:
        self._options.set("fuse_all_reduce_ops", value)

    @property
    def a_sync(self) -> bool:
        """Whether workers train without waiting for each other."""
        written = self._options.get("a_sync")
        return True if written is None else written

    @a_sync.setter
    def a_sync(self, value: bool) -> None:
        self._options.set("a_sync", value)

    @property
    def staleness(self) -> int | None:
        """0 is sync, n hybrid with at most n batches in flight, -1 async; None if it was not set."""
        return self._options.get("staleness")

    @staleness.setter
    def staleness(self, value: int) -> None:
        self._options.set("staleness", value)

    @property
    def half_async(self) -> bool:
        """Whether a worker waits for its own threads only."""
        return bool(self._options.get("half_async"))

    @half_async.setter
    def half_async(self, value: bool) -> None:
        self._options.set("half_async", value)

    @property
    def a_sync_configs(self) -> dict[str, Any]:
        """The settings of jobs with servers that were set, by name."""
        names = [*_native.Options.names_with_servers(), "wire_bits"]
        written = {name: self._options.get(name) for name in names if name != "a_sync"}
        return {name: value for name, value in written.items() if value is not None}

    @a_sync_configs.setter
    def a_sync_configs(self, configs: Mapping[str, Any]) -> None:
        if not isinstance(configs, Mapping):
            raise TypeError(f"`a_sync_configs` expects a dict, got {type(configs).__name__}")
        # All or nothing: an unknown name leaves the strategy unchanged.
        options = self._options.copy()
        for name, value in configs.items():
            options.set(name, value)
        object.__setattr__(self, "_options", options)

    def __str__(self) -> str:
        return self._options.describe()

    def __repr__(self) -> str:
        return f"<DistributedStrategy {self.a_sync_configs}>"

    def __deepcopy__(self, memo: Any) -> DistributedStrategy:
        copied = DistributedStrategy()
        object.__setattr__(copied, "_options", self._options.copy())
        return copied
