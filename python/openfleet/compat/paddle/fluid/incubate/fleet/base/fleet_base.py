"""The `fleet` of PaddlePaddle 1.x: an object instead of a module. There is one job per process."""

from __future__ import annotations

from typing import Any

import openfleet.fleet as _fleet
from openfleet import compat
from openfleet.compat.paddle.distributed import fleet as _paddle_fleet
from openfleet.fleet.optimizer import DistributedOptimizer

from .mode import Mode


class Fleet:
    """The job of this process."""

    def __init__(self, mode: int = Mode.TRANSPILER) -> None:
        self._mode = mode

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Functions with PaddlePaddle's arguments; saving has the same arguments as in `openfleet.fleet`.
        return getattr(_paddle_fleet if name in ("init_worker", "metrics", "util") else _fleet, name)

    def init(self, role_maker: Any = None) -> None:
        """Determines the role of this process."""
        _fleet.init(role_maker)

    def init_server(self, model_dir: str | None = None) -> None:
        """Prepares a server. `model_dir` is a checkpoint to start from."""
        _fleet.init_server(model_dir)


__all__ = ["DistributedOptimizer", "Fleet", "Mode"]
__getattr__ = compat.absent(__name__, __all__)
