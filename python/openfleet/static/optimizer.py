"""Optimizers: update rules, with learning-rate schedules in `lr`.

>>> from openfleet.static import optimizer
>>> optimizer.Adam(optimizer.lr.ExponentialDecay(0.1, gamma=0.5)).to_json()["optimizer"]
{'adam': {'beta1': 0.9, 'beta2': 0.999, 'epsilon': 1e-08}}
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from .._deprecated import IGNORED, accepts_deprecated
from . import lr
from .lr import LRScheduler
from .program import Program, Variable
from .regularizer import L2Decay, Regularizer

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "DecayedAdagrad",
    "Ftrl",
    "Lamb",
    "Momentum",
    "Optimizer",
    "RMSProp",
    "RowwiseAdagrad",
    "lr",
]


class Optimizer:
    """Base class: an update rule with its learning rate, weight decay and gradient clipping.

    All optimizers take these arguments:

    Args:
        learning_rate: A number, or a schedule of `static.optimizer.lr`.
        parameters: The parameters to train; all that have a gradient by default.
        weight_decay: A regularizer, or the coefficient of `L2Decay`.
        grad_clip: One of `static.clip`.

    Raises:
        TypeError: An argument has another type.
    """

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        rule: dict[str, Any],
        weight_decay: float | Regularizer | None = None,
        grad_clip: Any = None,
        parameters: Sequence[Any] | None = None,
    ) -> None:
        if not isinstance(learning_rate, (int, float, LRScheduler)) or isinstance(learning_rate, bool):
            raise TypeError(f"`learning_rate` expects a float or a schedule, got {type(learning_rate).__name__}")
        if isinstance(weight_decay, (int, float)):
            weight_decay = L2Decay(weight_decay)
        if grad_clip is not None and not hasattr(grad_clip, "to_json"):
            raise TypeError(f"`grad_clip` expects one of `static.clip`, got {type(grad_clip).__name__}")
        self._learning_rate, self._rule = learning_rate, rule
        self._weight_decay, self._grad_clip = weight_decay, grad_clip
        self._parameters = None if parameters is None else list(parameters)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON that the engine reads."""
        rate = self._learning_rate
        return {
            "optimizer": self._rule,
            "schedule": rate.to_json() if isinstance(rate, LRScheduler) else {"constant": float(rate)},
            "regularizer": self._weight_decay and self._weight_decay.to_json(),
            "clip": self._grad_clip and self._grad_clip.to_json(),
        }

    def exceptions(self, program: Program) -> dict[str, Any]:
        """Returns what the rule does differently for some parameters of a program, by name, as the engine reads it."""
        return {}

    @accepts_deprecated("self loss startup_program parameters no_grad_set", startup_program=IGNORED)
    def minimize(
        self, loss: Variable, *, parameters: Sequence[Any] | None = None, no_grad_set: Any = None
    ) -> tuple[list[Any], list[tuple[Variable, Variable]]]:
        """Adds the gradients of a loss and their updates to its program. Running the program then trains it.

        Args:
            loss: One number, [1], such as the `mean` of a loss per row.
            parameters: The parameters to train, as variables or names; all that have a gradient by default.
            no_grad_set: Variables that no gradient flows through.

        Returns:
            An empty list, as in PaddlePaddle, and the pairs of parameter and gradient.

        Raises:
            TypeError: `loss` is not a variable.
            ValueError: A number of the rule is infinite or NaN.

        >>> x, label = static.data("x", [None, 2]), static.data("label", [None, 1])
        >>> loss = static.nn.mean(static.nn.square_error_cost(static.nn.fc(x, 1), label))
        >>> _, pairs = static.optimizer.SGD(0.1).minimize(loss)
        >>> [parameter.name for parameter, gradient in pairs]
        ['fc_0.w_0', 'fc_0.b_0']
        """
        if not isinstance(loss, Variable):
            raise TypeError(f"`minimize` expects a Variable, got {type(loss).__name__}")
        prepare_backward(loss, self._parameters if parameters is None else parameters, no_grad_set)
        rule = self.to_json() | {"exceptions": self.exceptions(loss.program)}
        _check_finite("learning rate", rule["schedule"])
        _check_finite("rule", rule)
        pairs = loss.program._native.minimize(json.dumps(rule), loss.name)
        return [], [(Variable(loss.program, p), Variable(loss.program, g)) for p, g in pairs]

    def get_lr(self) -> float:
        """Returns the learning rate of the first step."""
        rate = self._learning_rate
        return rate.base if isinstance(rate, LRScheduler) else float(rate)


def _check_finite(name: str, value: Any) -> None:
    """Raises ValueError for NaN and infinity: JSON cannot hold them, and no rule has a use for them."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"`{name}` of the optimizer: expected a finite number, got {value}")
    if isinstance(value, dict):
        for inner, one in value.items():
            _check_finite(name if inner == "constant" else inner, one)


def prepare_backward(loss: Variable, parameters: Sequence[Any] | None, no_grad_set: Any) -> None:
    """Adds the gradients first where only some parameters are trained."""
    from .backward import append_backward

    if parameters is not None or no_grad_set:
        append_backward(loss, parameters, no_grad_set)


def _trainables(program: Program) -> list[Variable]:
    """The parameters and sparse tables of a program."""
    return [variable for variable in program.list_vars() if variable.kind in ("parameter", "table")]


class SGD(Optimizer):
    """Gradient descent: `weight -= rate * gradient`.

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> pairs = static.optimizer.SGD(0.1).minimize(loss)[1]
    >>> len(pairs)
    2
    """

    @accepts_deprecated(name=IGNORED)
    def __init__(
        self,
        learning_rate: float | LRScheduler = 0.001,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
    ) -> None:
        super().__init__(learning_rate, {"sgd": {}}, weight_decay, grad_clip, parameters)


class Momentum(Optimizer):
    """Gradient descent with a velocity: `velocity = momentum * velocity + gradient`, `weight -= rate * velocity`.

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> pairs = static.optimizer.Momentum(0.1, momentum=0.9).minimize(loss)[1]
    >>> len(pairs)
    2
    """

    @accepts_deprecated(name=IGNORED)
    def __init__(
        self,
        learning_rate: float | LRScheduler = 0.001,
        momentum: float = 0.9,
        parameters: Any = None,
        use_nesterov: bool = False,
        weight_decay: Any = None,
        grad_clip: Any = None,
    ) -> None:
        rule = {"momentum": {"momentum": float(momentum), "nesterov": bool(use_nesterov)}}
        super().__init__(learning_rate, rule, weight_decay, grad_clip, parameters)


class Adagrad(Optimizer):
    """Divides the rate of each weight by the root of the sum of its squared gradients (Duchi et al. 2011).

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> pairs = static.optimizer.Adagrad(0.1).minimize(loss)[1]
    >>> len(pairs)
    2
    """

    @accepts_deprecated(
        "self learning_rate epsilon parameters weight_decay grad_clip name initial_accumulator_value", name=IGNORED
    )
    def __init__(
        self,
        learning_rate: float | LRScheduler,
        epsilon: float = 1e-6,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        *,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        rule = {"adagrad": {"epsilon": float(epsilon), "initial_accumulator": float(initial_accumulator_value)}}
        super().__init__(learning_rate, rule, weight_decay, grad_clip, parameters)


class RowwiseAdagrad(Optimizer):
    """AdaGrad with one accumulator per embedding row: the rate of a row is divided by the root of the sum of its mean
    squared gradients (`EXACT_ROWWISE_ADAGRAD` of FBGEMM and torchrec).

    Rows of sparse tables need one float of optimizer state instead of one per weight. Dense parameters have no rows:
    they are trained as by `Adagrad` with the same `epsilon` and initial value.

    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> vector = static.nn.sparse_embedding(user, size=[0, 16], pooling="sum", storage="bfloat16")
    >>> loss = static.nn.mean(static.nn.fc(vector, size=1))
    >>> pairs = static.optimizer.RowwiseAdagrad(0.05).minimize(loss)[1]
    >>> len(pairs)
    3
    """

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        *,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        rule = {"rowwise_adagrad": {"epsilon": float(epsilon), "initial_accumulator": float(initial_accumulator_value)}}
        super().__init__(learning_rate, rule, weight_decay, grad_clip, parameters)


class DecayedAdagrad(Optimizer):
    """AdaGrad that forgets: divides the rate of each weight by the root of a running mean of its squared gradients.

    `RMSProp` has its epsilon under the root, and `DecayedAdagrad` outside of it.

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> pairs = static.optimizer.DecayedAdagrad(0.01, decay=0.9).minimize(loss)[1]
    >>> len(pairs)
    2
    """

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        decay: float = 0.95,
        epsilon: float = 1e-6,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
    ) -> None:
        rule = {"decayed_adagrad": {"decay": float(decay), "epsilon": float(epsilon)}}
        super().__init__(learning_rate, rule, weight_decay, grad_clip, parameters)


class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012): steps as long as the last ones were, in relation to the gradients.

    The paper has no learning rate: it is 1 there.

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> pairs = static.optimizer.Adadelta(1.0).minimize(loss)[1]
    >>> len(pairs)
    2
    """

    def __init__(
        self,
        learning_rate: float | LRScheduler = 0.001,
        epsilon: float = 1e-6,
        rho: float = 0.95,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
    ) -> None:
        rule = {"adadelta": {"epsilon": float(epsilon), "rho": float(rho)}}
        super().__init__(learning_rate, rule, weight_decay, grad_clip, parameters)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015): first and second moments with bias correction.

    A row of a sparse table is updated only in steps that push a gradient for it. With `lazy_mode=False` every row of a
    table moves in every step by its moments, as the weights of a dense parameter do; a step then takes as long as the
    table has rows. That is for one process and for collective jobs, and for tables whose ids are bounded
    (`embedding(is_sparse=True)`); elsewhere tables stay lazy, and one line in the log names them.

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> pairs = static.optimizer.Adam(0.001).minimize(loss)[1]
    >>> len(pairs)
    2
    """

    @accepts_deprecated(name=IGNORED)
    def __init__(
        self,
        learning_rate: float | LRScheduler = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        lazy_mode: bool = True,
    ) -> None:
        values = {"beta1": float(beta1), "beta2": float(beta2), "epsilon": float(epsilon)}
        rule = {"adam": values if lazy_mode else {**values, "lazy_mode": False}}
        super().__init__(learning_rate, rule, weight_decay, grad_clip, parameters)


class AdamW(Optimizer):
    """Adam with a weight decay that does not pass through the moments (Loshchilov and Hutter 2019).

    A row of a sparse table is updated, and decays, only in steps that push a gradient for it.

    Args:
        learning_rate: A number, or a schedule of `static.optimizer.lr`.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Keeps the quotient finite.
        parameters: The parameters to train; all that have a gradient by default.
        weight_decay: The share of a weight, times the learning rate, that is removed in every step.
        lr_ratio: A function from a parameter to the factor of its learning rate, called when the program is minimized.
        apply_decay_param_fun: A function from the name of a parameter to whether it decays, called at the same time.
            All parameters decay by default.
        grad_clip: One of `static.clip`.

    Exclude biases from the decay:

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> rule = static.optimizer.AdamW(0.001, apply_decay_param_fun=lambda name: ".b_" not in name)
    >>> rule.exceptions(loss.program)
    {'fc_0.b_0': {'weight_decay': False}}
    >>> pairs = rule.minimize(loss)[1]
    """

    def __init__(
        self,
        learning_rate: float | LRScheduler = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: float = 0.01,
        lr_ratio: Callable[[Any], float] | None = None,
        apply_decay_param_fun: Callable[[str], Any] | None = None,
        grad_clip: Any = None,
    ) -> None:
        if not isinstance(weight_decay, (int, float)) or isinstance(weight_decay, bool):
            raise TypeError(f"`weight_decay` of AdamW expects a float, got {type(weight_decay).__name__}")
        values = {"beta1": float(beta1), "beta2": float(beta2), "epsilon": float(epsilon)}
        rule = {"adamw": {**values, "weight_decay": float(weight_decay)}}
        super().__init__(learning_rate, rule, None, grad_clip, parameters)
        self._lr_ratio, self._has_decay = lr_ratio, apply_decay_param_fun

    def exceptions(self, program: Program) -> dict[str, Any]:
        """Returns the parameters without weight decay and those with their own learning rate."""
        found: dict[str, dict[str, Any]] = {}
        for parameter in _trainables(program):
            if self._has_decay is not None and not self._has_decay(parameter.name):
                found.setdefault(parameter.name, {})["weight_decay"] = False
            if self._lr_ratio is not None:
                found.setdefault(parameter.name, {})["learning_rate"] = float(self._lr_ratio(parameter))
        return found


class Adamax(Optimizer):
    """Adam whose second moment is the largest gradient so far, which decays (Kingma and Ba 2015, section 7.1).

    A row of a sparse table is updated only in steps that push a gradient for it.

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> pairs = static.optimizer.Adamax(0.001).minimize(loss)[1]
    >>> len(pairs)
    2
    """

    def __init__(
        self,
        learning_rate: float | LRScheduler = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
    ) -> None:
        rule = {"adamax": {"beta1": float(beta1), "beta2": float(beta2), "epsilon": float(epsilon)}}
        super().__init__(learning_rate, rule, weight_decay, grad_clip, parameters)


class Lamb(Optimizer):
    """Lamb (You et al. 2020): the direction of Adam with weight decay, and steps in proportion to a parameter's norm.

    The norm is that of a whole dense parameter, in every mode: servers keep a parameter in one piece. Of a sparse table
    it is the norm of each row that is pushed, as in FBGEMM and torchrec, because no process has all rows.

    Args:
        learning_rate: A number, or a schedule of `static.optimizer.lr`.
        lamb_weight_decay: The share of the weights that is added to the direction.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Keeps the quotient finite.
        parameters: The parameters to train; all that have a gradient by default.
        grad_clip: One of `static.clip`.
        exclude_from_weight_decay_fn: A function from a parameter to whether it has no weight decay, called when the
            program is minimized. Such a parameter moves as by Adam, without the norms, unless `always_adapt` is set.
        always_adapt: Whether parameters without weight decay use the norms too.

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> rule = static.optimizer.Lamb(0.01, exclude_from_weight_decay_fn=lambda parameter: parameter.ndim == 1)
    >>> rule.exceptions(loss.program)
    {'fc_0.b_0': {'weight_decay': False}}
    >>> pairs = rule.minimize(loss)[1]
    """

    def __init__(
        self,
        learning_rate: float | LRScheduler = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameters: Any = None,
        grad_clip: Any = None,
        exclude_from_weight_decay_fn: Callable[[Any], Any] | None = None,
        *,
        always_adapt: bool = False,
    ) -> None:
        values = {"beta1": float(beta1), "beta2": float(beta2), "epsilon": float(epsilon)}
        decay = {"weight_decay": float(lamb_weight_decay), "always_adapt": bool(always_adapt)}
        super().__init__(learning_rate, {"lamb": {**values, **decay}}, None, grad_clip, parameters)
        self._has_no_decay = exclude_from_weight_decay_fn

    def exceptions(self, program: Program) -> dict[str, Any]:
        """Returns the parameters without weight decay."""
        if self._has_no_decay is None:
            return {}
        excluded = [parameter for parameter in _trainables(program) if self._has_no_decay(parameter)]
        return {parameter.name: {"weight_decay": False} for parameter in excluded}


class RMSProp(Optimizer):
    """Divides the rate of each weight by the root of a running mean of its squared gradients.

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> pairs = static.optimizer.RMSProp(0.01).minimize(loss)[1]
    >>> len(pairs)
    2
    """

    @accepts_deprecated(name=IGNORED)
    def __init__(
        self,
        learning_rate: float | LRScheduler,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
    ) -> None:
        values = {"rho": float(rho), "epsilon": float(epsilon), "momentum": float(momentum), "centered": bool(centered)}
        super().__init__(learning_rate, {"rms_prop": values}, weight_decay, grad_clip, parameters)


class Ftrl(Optimizer):
    """Follow the regularized leader (McMahan et al. 2013): `l1` makes weights exactly zero.

    >>> loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> pairs = static.optimizer.Ftrl(0.1).minimize(loss)[1]
    >>> len(pairs)
    2
    """

    @accepts_deprecated(name=IGNORED)
    def __init__(
        self,
        learning_rate: float | LRScheduler,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        weight_decay: Any = None,
        grad_clip: Any = None,
    ) -> None:
        rule = {"ftrl": {"l1": float(l1), "l2": float(l2), "lr_power": float(lr_power)}}
        super().__init__(learning_rate, rule, weight_decay, grad_clip)
