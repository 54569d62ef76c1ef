"""Collective training of PaddlePaddle 1.x: it can be set up, but `minimize` is not available yet."""

from __future__ import annotations

from typing import Any

from openfleet import compat
from openfleet.compat.paddle.fluid.incubate.fleet.base.fleet_base import Fleet as _Base
from openfleet.compat.paddle.fluid.incubate.fleet.base.mode import Mode as _Mode
from openfleet.static.optimizer import Optimizer as _Optimizer


class DistributedStrategy:
    """Settings of a collective job. They are stored and have no effect yet."""

    def __init__(self) -> None:
        self.mode = "nccl2"
        self.collective_mode: str | None = None
        self.nccl_comm_num = 1
        self.use_local_sgd = False
        self.use_dgc = False
        self.use_hierarchical_allreduce = False
        self.forward_recompute = False
        self.num_threads = 1


class CollectiveOptimizer:
    """An optimizer of collective training. Its `minimize` is not available yet."""

    def __init__(self, optimizer: Any = None, strategy: Any = None) -> None:
        if optimizer is not None and not isinstance(optimizer, _Optimizer):
            raise TypeError(f"`distributed_optimizer` expects an optimizer, got {type(optimizer).__name__}")
        self.user_defined_optimizer, self.strategy = optimizer, strategy

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        """Raises NotImplementedError: collective training is not available yet."""
        raise NotImplementedError(
            "`minimize` of a collective optimizer: collective training is not available yet\n\n"
            "hint: train with servers, `fluid.incubate.fleet.parameter_server.distribute_transpiler`"
        )

    backward = apply_gradients = minimize


class Collective(_Base):
    """The job of this process, with workers only."""

    def __init__(self) -> None:
        super().__init__(_Mode.COLLECTIVE)

    def distributed_optimizer(self, optimizer: Any = None, strategy: Any = None) -> CollectiveOptimizer:
        """Returns an optimizer whose `minimize` is not available yet."""
        return CollectiveOptimizer(optimizer, strategy)


fleet = Collective()
__all__ = ["Collective", "CollectiveOptimizer", "DistributedStrategy", "fleet"]
__getattr__ = compat.absent(__name__, __all__)
