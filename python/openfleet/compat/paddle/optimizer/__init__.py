"""`paddle.optimizer`: update rules, and schedules in `lr`."""

from __future__ import annotations

from typing import Any

from openfleet import compat
from openfleet.static import optimizer as _rules
from openfleet.static.optimizer import Optimizer

from . import lr


class _Paddle(Optimizer):
    def minimize(self, loss: Any, startup_program: Any = None, parameters: Any = None, no_grad_set: Any = None) -> Any:
        """Adds the gradients of a loss and their updates to its program."""
        return super().minimize(loss, parameters=parameters, no_grad_set=no_grad_set)


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
        name: str | None = None,
    ) -> None:
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


class Adam(_Paddle, _rules.Adam):
    """First and second moments with bias correction. Rows of sparse tables are always updated lazily."""

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
        name: str | None = None,
    ) -> None:
        _rules.Adam.__init__(self, learning_rate, beta1, beta2, epsilon, parameters, weight_decay, grad_clip)


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


__all__ = ["SGD", "Adagrad", "Adam", "Momentum", "Optimizer", "RMSProp", "lr"]
__getattr__ = compat.absent(__name__, __all__)
