"""Collective training of the first version: scripts import and set it up; training itself follows later."""

from __future__ import annotations

from typing import Any

from openfleet import compat
from openfleet.compat.paddle.fluid.incubate.fleet.base.fleet_base import Fleet as _Base
from openfleet.compat.paddle.fluid.incubate.fleet.base.mode import Mode as _Mode
from openfleet.static.optimizer import Optimizer as _Optimizer


class DistributedStrategy:
    """What a collective job could be told. It is kept as it is written."""

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
    """An optimizer whose workers would reduce gradients among each other."""

    def __init__(self, optimizer: Any = None, strategy: Any = None) -> None:
        if optimizer is not None and not isinstance(optimizer, _Optimizer):
            raise TypeError(f"`distributed_optimizer` expects an optimizer, got {type(optimizer).__name__}")
        self.user_defined_optimizer, self.strategy = optimizer, strategy

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        """Not available yet."""
        raise NotImplementedError(
            "`minimize` of a collective optimizer: collective training follows later\n\n"
            "hint: train with servers, `fluid.incubate.fleet.parameter_server.distribute_transpiler`"
        )

    backward = apply_gradients = minimize


class Collective(_Base):
    """The one job of this process, among workers only."""

    def __init__(self) -> None:
        super().__init__(_Mode.COLLECTIVE)

    def distributed_optimizer(self, optimizer: Any = None, strategy: Any = None) -> CollectiveOptimizer:
        """An optimizer whose `minimize` follows later."""
        return CollectiveOptimizer(optimizer, strategy)


fleet = Collective()
__all__ = ["Collective", "CollectiveOptimizer", "DistributedStrategy", "fleet"]
__getattr__ = compat.absent(__name__, __all__)
