"""`paddle.optimizer`: update rules, and schedules in `lr`."""

from __future__ import annotations

import warnings
from typing import Any

from openfleet import compat
from openfleet.static import Program
from openfleet.static import optimizer as _rules
from openfleet.static.optimizer import Optimizer

from .._layers import tables_of_computed_ids as _tables_of_computed_ids
from . import lr


class _Paddle(Optimizer):
    def minimize(self, loss: Any, startup_program: Any = None, parameters: Any = None, no_grad_set: Any = None) -> Any:
        """Adds the gradients of a loss and their updates to its program."""
        return super().minimize(loss, parameters=parameters, no_grad_set=no_grad_set)


class _Adam(_Paddle, _rules.Adam):
    """Adam whose bias correction is one step ahead on rows, and on parameters that are tables in PaddlePaddle."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._rule["adam"]["rows_ahead"] = True

    def exceptions(self, program: Program) -> dict[str, Any]:
        """Returns what the rule does differently for some parameters of a program."""
        tables = () if self._weight_decay else _tables_of_computed_ids(program)
        return {name: {"as_rows": True} for name in tables}


class SGD(_Paddle, _rules.SGD):
    """Gradient descent."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        _rules.SGD.__init__(self, learning_rate, parameters, weight_decay, grad_clip)


class Momentum(_Paddle, _rules.Momentum):
    """Gradient descent with a velocity."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        momentum: float = 0.9,
        parameters: Any = None,
        use_nesterov: bool = False,
        weight_decay: Any = None,
        grad_clip: Any = None,
        multi_precision: bool = False,
        rescale_grad: float = 1.0,
        use_multi_tensor: bool = False,
        name: str | None = None,
    ) -> None:
        if rescale_grad != 1.0:
            raise NotImplementedError(f"`rescale_grad={rescale_grad}` of Momentum: scale the loss")
        _rules.Momentum.__init__(self, learning_rate, momentum, parameters, use_nesterov, weight_decay, grad_clip)


class Adagrad(_Paddle, _rules.Adagrad):
    """Divides the rate of each weight by the root of the sum of its squared gradients."""

    def __init__(
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        first = initial_accumulator_value
        _rules.Adagrad.__init__(
            self, learning_rate, epsilon, parameters, weight_decay, grad_clip, initial_accumulator_value=first
        )


class Adadelta(_Paddle, _rules.Adadelta):
    """Steps as long as the last ones were, in relation to the gradients."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        epsilon: float = 1e-6,
        rho: float = 0.95,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        _rules.Adadelta.__init__(self, learning_rate, epsilon, rho, parameters, weight_decay, grad_clip)


class Adam(_Adam):
    """First and second moments with bias correction.

    Without `lazy_mode` the rows of sparse tables with bounded ids move in every step, in one process and in collective
    jobs. Servers update the rows that are pushed, as PaddlePaddle's servers do. In one process and in collective jobs
    the bias correction of sparse rows is one step ahead, as that of PaddlePaddle 2.6: the costs are the same.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        use_multi_tensor: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, parameters, weight_decay, grad_clip, lazy_mode)


class AdamW(_Paddle, _rules.AdamW):
    """Adam with a weight decay that does not pass through the moments.

    Rows of sparse tables are updated lazily; PaddlePaddle does not train them by AdamW.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: float = 0.01,
        lr_ratio: Any = None,
        apply_decay_param_fun: Any = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        functions = lr_ratio, apply_decay_param_fun
        moments = beta1, beta2, epsilon
        _rules.AdamW.__init__(self, learning_rate, *moments, parameters, weight_decay, *functions, grad_clip)


class Adamax(_Paddle, _rules.Adamax):
    """Adam whose second moment is the largest gradient so far, which decays."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        _rules.Adamax.__init__(self, learning_rate, beta1, beta2, epsilon, parameters, weight_decay, grad_clip)


class _Lamb(_Paddle, _rules.Lamb):
    def exceptions(self, program: Any) -> dict[str, Any]:
        """Says that rows have norms of their own where PaddlePaddle takes that of a whole table."""
        names = ", ".join(f"`{each.name}`" for each in program.list_vars() if each.kind == "table")
        if names:
            message = f"Lamb takes the norm of each row of a sparse table, not of the whole table: {names}"
            warnings.warn(message, stacklevel=4)
        return super().exceptions(program)


class Lamb(_Lamb):
    """The direction of Adam with weight decay, with steps in proportion to the norm of a parameter or a sparse row."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameters: Any = None,
        grad_clip: Any = None,
        exclude_from_weight_decay_fn: Any = None,
        multi_precision: bool = False,
        always_adapt: bool = False,
        name: str | None = None,
    ) -> None:
        excluded = exclude_from_weight_decay_fn
        rates = learning_rate, lamb_weight_decay, beta1, beta2, epsilon
        _rules.Lamb.__init__(self, *rates, parameters, grad_clip, excluded, always_adapt=always_adapt)


class RMSProp(_Paddle, _rules.RMSProp):
    """Divides the rate of each weight by the root of a running mean of its squared gradients."""

    def __init__(
        self,
        learning_rate: Any,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        rates = learning_rate, rho, epsilon, momentum, centered
        _rules.RMSProp.__init__(self, *rates, parameters, weight_decay, grad_clip)


__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "Momentum", "Optimizer", "RMSProp", "lr"]
__getattr__ = compat.absent(__name__, __all__)
