"""Learning-rate schedules by global step. Each table counts its own steps, so there is no `step()` to call.

Schedules that count epochs in PaddlePaddle take `decay_steps`, the number of steps per epoch (1 by default).

>>> PiecewiseDecay([100], [0.1, 0.01]).to_json()
{'piecewise': {'boundaries': [100], 'values': [0.1, 0.01]}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class LRScheduler:
    """Base class: a learning rate that depends on the global step.

    >>> static.optimizer.lr.ExponentialDecay(0.1, gamma=0.9).get_lr()
    0.1
    """

    def __init__(self, base: float, json: Any) -> None:
        self.base, self._json = float(base), json

    def to_json(self) -> Any:
        """Returns the JSON that the engine reads."""
        return self._json

    def step(self, epoch: int | None = None) -> None:
        """Does nothing: tables count their steps."""

    def get_lr(self) -> float:
        """Returns the learning rate of the first step."""
        return self.base


def _decay(word: str, base: float, steps: int, rate: float, staircase: bool) -> Any:
    values = {"base": float(base), "decay_steps": int(steps), "decay_rate": float(rate), "staircase": staircase}
    return {word: values}


class ExponentialDecay(LRScheduler):
    """`learning_rate * gamma ^ (step / decay_steps)`; with `staircase` the exponent is rounded down.

    >>> sgd = static.optimizer.SGD(static.optimizer.lr.ExponentialDecay(0.1, gamma=0.9, decay_steps=1000))
    """

    def __init__(self, learning_rate: float, gamma: float, decay_steps: int = 1, staircase: bool = False) -> None:
        super().__init__(learning_rate, _decay("exponential", learning_rate, decay_steps, gamma, staircase))


class NaturalExpDecay(LRScheduler):
    """`learning_rate * e ^ (-gamma * step / decay_steps)`.

    >>> adam = static.optimizer.Adam(static.optimizer.lr.NaturalExpDecay(0.1, gamma=0.5, decay_steps=1000))
    """

    def __init__(self, learning_rate: float, gamma: float, decay_steps: int = 1, staircase: bool = False) -> None:
        super().__init__(learning_rate, _decay("natural_exp", learning_rate, decay_steps, gamma, staircase))


class InverseTimeDecay(LRScheduler):
    """`learning_rate / (1 + gamma * step / decay_steps)`.

    >>> adam = static.optimizer.Adam(static.optimizer.lr.InverseTimeDecay(0.1, gamma=0.5, decay_steps=1000))
    """

    def __init__(self, learning_rate: float, gamma: float, decay_steps: int = 1, staircase: bool = False) -> None:
        super().__init__(learning_rate, _decay("inverse_time", learning_rate, decay_steps, gamma, staircase))


class PolynomialDecay(LRScheduler):
    """Falls from `learning_rate` to `end_lr` over `decay_steps`; with `cycle` it starts over after that.

    >>> adam = static.optimizer.Adam(static.optimizer.lr.PolynomialDecay(0.1, decay_steps=1000, end_lr=0.01))
    """

    def __init__(
        self, learning_rate: float, decay_steps: int, end_lr: float = 0.0001, power: float = 1.0, cycle: bool = False
    ) -> None:
        values = {"base": float(learning_rate), "decay_steps": int(decay_steps), "end": float(end_lr)}
        super().__init__(learning_rate, {"polynomial": {**values, "power": float(power), "cycle": cycle}})


class PiecewiseDecay(LRScheduler):
    """`values[i]`, where i is the number of boundaries at or before the step.

    >>> adam = static.optimizer.Adam(static.optimizer.lr.PiecewiseDecay([1000, 5000], [0.1, 0.01, 0.001]))
    """

    def __init__(self, boundaries: Sequence[int], values: Sequence[float]) -> None:
        numbers = {"boundaries": [int(b) for b in boundaries], "values": [float(v) for v in values]}
        super().__init__(values[0] if values else 0.0, {"piecewise": numbers})


class CosineDecay(LRScheduler):
    """Half a cosine over `epochs` epochs of `step_each_epoch` steps.

    >>> adam = static.optimizer.Adam(static.optimizer.lr.CosineDecay(0.1, step_each_epoch=1000, epochs=10))
    """

    def __init__(self, learning_rate: float, step_each_epoch: int, epochs: int) -> None:
        values = {"base": float(learning_rate), "step_each_epoch": int(step_each_epoch), "epochs": int(epochs)}
        super().__init__(learning_rate, {"cosine": values})


class NoamDecay(LRScheduler):
    """Rises for `warmup_steps`, then falls with the square root of the step (Vaswani et al. 2017).

    The step counts from `first`: from 1 in the paper, from 0 in PaddlePaddle 2, where the first step has the rate 0.

    >>> adam = static.optimizer.Adam(static.optimizer.lr.NoamDecay(d_model=64, warmup_steps=1000))
    """

    def __init__(self, d_model: float, warmup_steps: int, learning_rate: float = 1.0, *, first: int = 1) -> None:
        values = {"base": float(learning_rate), "d_model": float(d_model), "warmup_steps": int(warmup_steps)}
        super().__init__(learning_rate, {"noam": values if first == 1 else {**values, "first": int(first)}})


class LinearWarmup(LRScheduler):
    """Rises or falls linearly from `start_lr` to `end_lr` over `warmup_steps`, then follows `learning_rate`.

    >>> adam = static.optimizer.Adam(static.optimizer.lr.LinearWarmup(0.1, warmup_steps=1000, start_lr=0.0, end_lr=0.1))
    """

    def __init__(self, learning_rate: float | LRScheduler, warmup_steps: int, start_lr: float, end_lr: float) -> None:
        after = (
            learning_rate.to_json() if isinstance(learning_rate, LRScheduler) else {"constant": float(learning_rate)}
        )
        values = {"warmup_steps": int(warmup_steps), "start": float(start_lr), "end": float(end_lr), "after": after}
        super().__init__(start_lr, {"warmup": values})
