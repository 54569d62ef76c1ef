"""`fluid.optimizer`, with its own argument names."""

from __future__ import annotations

from typing import Any

from openfleet import compat
from openfleet.static import optimizer as _rules
from openfleet.static.optimizer import Optimizer

from ..optimizer import _Adam, _Lamb, _Paddle


class SGD(_Paddle, _rules.SGD):
    """Gradient descent."""

    def __init__(
        self,
        learning_rate: Any,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        _rules.SGD.__init__(self, learning_rate, parameter_list, regularization, grad_clip)


class Momentum(_Paddle, _rules.Momentum):
    """Gradient descent with a velocity."""

    def __init__(
        self,
        learning_rate: Any,
        momentum: float,
        parameter_list: Any = None,
        use_nesterov: bool = False,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        _rules.Momentum.__init__(self, learning_rate, momentum, parameter_list, use_nesterov, regularization, grad_clip)


class Adagrad(_Paddle, _rules.Adagrad):
    """A rate per weight that shrinks with the squares seen."""

    def __init__(
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        _rules.Adagrad.__init__(
            self,
            learning_rate,
            epsilon,
            parameter_list,
            regularization,
            grad_clip,
            initial_accumulator_value=initial_accumulator_value,
        )


class Adam(_Adam):
    """First and second moments with bias correction."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        lazy_mode: bool = False,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, parameter_list, regularization, grad_clip, lazy_mode)


class Adamax(_Paddle, _rules.Adamax):
    """Adam whose second moment is the largest gradient so far."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        _rules.Adamax.__init__(self, learning_rate, beta1, beta2, epsilon, parameter_list, regularization, grad_clip)


class Adadelta(_Paddle, _rules.Adadelta):
    """Steps as long as the last ones were, in relation to the gradients."""

    def __init__(
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        rho: float = 0.95,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        _rules.Adadelta.__init__(self, learning_rate, epsilon, rho, parameter_list, regularization, grad_clip)


class DecayedAdagrad(_Paddle, _rules.DecayedAdagrad):
    """A rate per weight from a running mean of squares, with epsilon outside the root."""

    def __init__(
        self,
        learning_rate: Any,
        decay: float = 0.95,
        epsilon: float = 1e-6,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        _rules.DecayedAdagrad.__init__(self, learning_rate, decay, epsilon, parameter_list, regularization, grad_clip)


class LambOptimizer(_Lamb):
    """The direction of Adam with weight decay, with steps in proportion to the norm of a parameter or a sparse row."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        exclude_from_weight_decay_fn: Any = None,
        name: str | None = None,
    ) -> None:
        excluded = exclude_from_weight_decay_fn
        rates = learning_rate, lamb_weight_decay, beta1, beta2, epsilon
        _rules.Lamb.__init__(self, *rates, parameter_list, grad_clip, excluded)
        self._weight_decay = regularization


class RMSProp(_Paddle, _rules.RMSProp):
    """A rate per weight from a running mean of squares."""

    def __init__(
        self,
        learning_rate: Any,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        _rules.RMSProp.__init__(
            self, learning_rate, rho, epsilon, momentum, centered, parameter_list, regularization, grad_clip
        )


class Ftrl(_Paddle, _rules.Ftrl):
    """Follow the regularized leader."""

    def __init__(
        self,
        learning_rate: Any,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        _rules.Ftrl.__init__(self, learning_rate, l1, l2, lr_power, regularization, grad_clip)
        self._parameters = parameter_list


SGDOptimizer, MomentumOptimizer, AdagradOptimizer = SGD, Momentum, Adagrad
AdamOptimizer, RMSPropOptimizer, FtrlOptimizer = Adam, RMSProp, Ftrl
AdamaxOptimizer, AdadeltaOptimizer, DecayedAdagradOptimizer = Adamax, Adadelta, DecayedAdagrad
__all__ = [name for name in dir() if name[0].isupper()]
__getattr__ = compat.absent(__name__, __all__)
