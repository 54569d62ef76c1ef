"""The optimizer of a job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..static.optimizer import Optimizer, prepare_backward
from ..static.program import Program, Variable, default_startup_program
from . import _job


class DistributedOptimizer:
    """An optimizer together with the strategy of its job, as `fleet.distributed_optimizer` returns it.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> optimizer = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> _, pairs = optimizer.minimize(loss)
    >>> len(pairs)
    2
    """

    def __init__(self, optimizer: Optimizer, strategy: Any) -> None:
        if not isinstance(optimizer, Optimizer):
            is_of_pytorch = type(optimizer).__module__.startswith("torch.")
            hint = "\n\nhint: for a PyTorch model, pass it too: `model=`" if is_of_pytorch else ""
            raise TypeError(f"`distributed_optimizer` expects an optimizer, got {type(optimizer).__name__}{hint}")
        rule = json.dumps(optimizer.to_json())
        self.user_defined_optimizer = optimizer
        self._native = _job.current().distributed_optimizer(rule, strategy._options)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Any = None,
    ) -> tuple[list[Any], list[tuple[Variable, Variable]]]:
        """Adds the gradients of a loss and their updates to its program. Call it the same way in every process.

        Args:
            loss: One number, [1].
            startup_program: The program with the first values; the default startup program by default.
            parameter_list: The parameters to train; all that have a gradient by default.
            no_grad_set: Variables that no gradient flows through.

        Returns:
            An empty list, as in PaddlePaddle, and the pairs of parameter and gradient.
        """
        if not isinstance(loss, Variable):
            raise TypeError(f"`minimize` expects a Variable, got {type(loss).__name__}")
        prepare_backward(
            loss, self.user_defined_optimizer._parameters if parameter_list is None else parameter_list, no_grad_set
        )
        exceptions = json.dumps(self.user_defined_optimizer.exceptions(loss.program))
        pairs = self._native.minimize(loss.program._native, loss.name, exceptions)
        _job.main_program = loss.program
        _job.startup_program = default_startup_program() if startup_program is None else startup_program
        return [], [(Variable(loss.program, p), Variable(loss.program, g)) for p, g in pairs]
