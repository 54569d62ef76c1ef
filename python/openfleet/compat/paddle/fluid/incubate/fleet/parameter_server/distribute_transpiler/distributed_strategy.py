"""Strategies of PaddlePaddle 1.x by name, and their parts.

>>> strategy = StrategyFactory.create_geo_strategy(400)
>>> print(strategy)
mode geo: push differences every 400 batches, dense values averaged every 10 batches
>>> strategy.get_program_config().geo_sgd_need_push_nums
400
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openfleet import _native, compat
from openfleet.compat._notices import say_once
from openfleet.compat.paddle.fluid.compiler import BuildStrategy, ExecutionStrategy
from openfleet.compat.paddle.fluid.transpiler import DistributeTranspilerConfig


class TrainerRuntimeConfig:
    """How a worker sends gradients. `runtime_configs` has the settings that were made, by PaddlePaddle's names."""

    _names = {
        "communicator_independent_recv_thread": "independent_recv_thread",
        "communicator_max_merge_var_num": "max_merge_var_num",
        "communicator_min_send_grad_num_before_recv": "min_send_grad_num_before_recv",
        "communicator_send_queue_size": "send_queue_size",
        "communicator_send_wait_times": "send_wait_times",
        "communicator_thread_pool_size": "thread_pool_size",
    }

    def __init__(self) -> None:
        self.mode: str | None = None
        self.runtime_configs: dict[str, Any] = {}

    def get_communicator_flags(self) -> dict[str, str]:
        """Returns the settings as text."""
        return {name: str(value) for name, value in self.runtime_configs.items()}


class ServerRuntimeConfig:
    """How a server receives. Its members have no effect: servers have one thread per core."""

    def __init__(self) -> None:
        self._rpc_send_thread_num = self._rpc_get_thread_num = self._rpc_prefetch_thread_num = 12


class DistributedStrategy(DistributeTranspilerConfig):
    """The mode of a job. Its parts are read with `get_...`, changed, and given back with `set_...`."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_parts"] = {
            "trainer_runtime_config": TrainerRuntimeConfig(),
            "server_runtime_config": ServerRuntimeConfig(),
            "execute_strategy": ExecutionStrategy(),
            "build_strategy": BuildStrategy(),
        }

    def get_program_config(self) -> DistributeTranspilerConfig:
        """Returns the strategy itself, which has the options of the transpiler."""
        return self

    def set_program_config(self, config: DistributeTranspilerConfig | Mapping[str, Any]) -> None:
        """Sets the options of the transpiler, all of them or those in a dict."""
        if isinstance(config, DistributeTranspilerConfig):
            self.__dict__["_options"] = config._options.copy()
            self.__dict__.update({name: config.__dict__[name] for name in self._others if name in config.__dict__})
            return
        if not isinstance(config, Mapping):
            raise TypeError(f"`config` expects a DistributeTranspilerConfig or a dict, got {type(config).__name__}")
        for name, value in config.items():
            setattr(self, name, value)

    def get_trainer_runtime_config(self) -> TrainerRuntimeConfig:
        """Returns how a worker sends gradients."""
        part: TrainerRuntimeConfig = self._parts["trainer_runtime_config"]
        return part

    def set_trainer_runtime_config(self, config: TrainerRuntimeConfig | Mapping[str, Any]) -> None:
        """Sets how a worker sends gradients, by PaddlePaddle's names: `communicator_send_queue_size` and others."""
        part = self.get_trainer_runtime_config()
        changes = config.runtime_configs if isinstance(config, TrainerRuntimeConfig) else config
        if not isinstance(changes, Mapping):
            raise TypeError(f"`config` expects a TrainerRuntimeConfig or a dict, got {type(config).__name__}")
        options = self._options.copy()
        for name, value in changes.items():
            if name not in part._names:
                nearest = _native.nearest(name, list(part._names))
                raise NotImplementedError(f"TrainerRuntimeConfig has no `{name}`\n\nhint: {nearest}")
            options.set(part._names[name], int(value))
        self.__dict__["_options"] = options
        part.runtime_configs = {**part.runtime_configs, **changes}

    def get_server_runtime_config(self) -> ServerRuntimeConfig:
        """Returns how a server receives, which has no effect."""
        part: ServerRuntimeConfig = self._parts["server_runtime_config"]
        return part

    def set_server_runtime_config(self, config: Any) -> None:
        """Has no effect: servers have one thread per core."""
        self._without_effect("server_runtime_config", config)

    def get_execute_strategy(self) -> ExecutionStrategy:
        """Returns the ExecutionStrategy, which has no effect."""
        part: ExecutionStrategy = self._parts["execute_strategy"]
        return part

    def set_execute_strategy(self, config: Any) -> None:
        """Has no effect."""
        self._without_effect("execute_strategy", config)

    def get_build_strategy(self) -> BuildStrategy:
        """Returns the BuildStrategy, which has no effect."""
        part: BuildStrategy = self._parts["build_strategy"]
        return part

    def set_build_strategy(self, config: Any) -> None:
        """Has no effect."""
        self._without_effect("build_strategy", config)

    def _without_effect(self, name: str, config: Any) -> None:
        say_once(f"`set_{name}` of a strategy has no effect")
        if isinstance(config, Mapping):
            for key, value in config.items():
                setattr(self._parts[name], key, value)
        else:
            self._parts[name] = config

    def __getattr__(self, name: str) -> Any:
        if name == "_parts":
            raise AttributeError(name)
        return super().__getattr__(name)


class SyncStrategy(DistributedStrategy):
    """Sync: all live workers wait for each other at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.sync_mode = True


class HalfAsyncStrategy(DistributedStrategy):
    """Half-async: a worker waits for its own threads only."""

    def __init__(self) -> None:
        super().__init__()
        self.sync_mode = False


class AsyncStrategy(DistributedStrategy):
    """Async: workers do not wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.sync_mode, self.runtime_split_send_recv = False, True


class GeoStrategy(AsyncStrategy):
    """Geo: workers train on copies and exchange differences every `update_frequency` batches."""

    def __init__(self, update_frequency: int = 100) -> None:
        super().__init__()
        self.geo_sgd_mode, self.geo_sgd_need_push_nums = True, update_frequency


class StrategyFactory:
    """Creates strategies by name."""

    @staticmethod
    def create_sync_strategy() -> SyncStrategy:
        """Sync: all live workers wait for each other at every step."""
        return SyncStrategy()

    @staticmethod
    def create_half_async_strategy() -> HalfAsyncStrategy:
        """Half-async: a worker waits for its own threads only."""
        return HalfAsyncStrategy()

    @staticmethod
    def create_async_strategy() -> AsyncStrategy:
        """Async: workers do not wait for each other."""
        return AsyncStrategy()

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> GeoStrategy:
        """Geo: workers train on copies and exchange differences every `update_frequency` batches."""
        return GeoStrategy(update_frequency)


__all__ = [
    "AsyncStrategy",
    "DistributedStrategy",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "ServerRuntimeConfig",
    "StrategyFactory",
    "SyncStrategy",
    "TrainerRuntimeConfig",
]
__getattr__ = compat.absent(__name__, __all__)
