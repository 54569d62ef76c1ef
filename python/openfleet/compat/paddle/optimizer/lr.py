"""`paddle.optimizer.lr`: schedules with PaddlePaddle's arguments.

In PaddlePaddle a script calls `step()`, once per epoch or per batch. Here each table counts its steps, so a schedule
advances with every batch; `step()` warns about that, once.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from openfleet import compat
from openfleet.compat._notices import say_once
from openfleet.static import lr as _lr
from openfleet.static.lr import LRScheduler


class _Counted(LRScheduler):
    _warned = False

    def step(self, epoch: int | None = None) -> None:
        """Does nothing: tables count their steps."""
        if not _Counted._warned:
            _Counted._warned = True
            warnings.warn("schedules advance with every batch here, `step()` does nothing", stacklevel=2)


def _check_start(last_epoch: int, verbose: bool) -> None:
    if verbose:
        say_once("`verbose=True` of a schedule: learning rates are not printed here")
    if last_epoch != -1:
        raise NotImplementedError(f"`last_epoch={last_epoch}`: a schedule continues from the steps of its table")


class NoamDecay(_Counted, _lr.NoamDecay):
    """Rises from 0 for `warmup_steps`, then falls with the root of the step."""

    def __init__(
        self,
        d_model: float,
        warmup_steps: int,
        learning_rate: float = 1.0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        _check_start(last_epoch, verbose)
        super().__init__(d_model, warmup_steps, learning_rate, first=0)


class PiecewiseDecay(_Counted, _lr.PiecewiseDecay):
    """`values[i]` where `i` boundaries are at or before the step."""

    def __init__(
        self, boundaries: Sequence[int], values: Sequence[float], last_epoch: int = -1, verbose: bool = False
    ) -> None:
        _check_start(last_epoch, verbose)
        super().__init__(boundaries, values)


class NaturalExpDecay(_Counted, _lr.NaturalExpDecay):
    """`learning_rate * e ^ (-gamma * step)`."""

    def __init__(self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False) -> None:
        _check_start(last_epoch, verbose)
        super().__init__(learning_rate, gamma)


class InverseTimeDecay(_Counted, _lr.InverseTimeDecay):
    """`learning_rate / (1 + gamma * step)`."""

    def __init__(self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False) -> None:
        _check_start(last_epoch, verbose)
        super().__init__(learning_rate, gamma)


class ExponentialDecay(_Counted, _lr.ExponentialDecay):
    """`learning_rate * gamma ^ step`."""

    def __init__(self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False) -> None:
        _check_start(last_epoch, verbose)
        super().__init__(learning_rate, gamma)


class StepDecay(_Counted, _lr.ExponentialDecay):
    """`learning_rate * gamma ^ (step // step_size)`."""

    def __init__(
        self, learning_rate: float, step_size: int, gamma: float = 0.1, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        _check_start(last_epoch, verbose)
        super().__init__(learning_rate, gamma, step_size, True)


class MultiStepDecay(_Counted, _lr.PiecewiseDecay):
    """`learning_rate * gamma ^ i` where `i` milestones are at or before the step."""

    def __init__(
        self,
        learning_rate: float,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        _check_start(last_epoch, verbose)
        super().__init__(milestones, [learning_rate * gamma**i for i in range(len(milestones) + 1)])


class PolynomialDecay(_Counted, _lr.PolynomialDecay):
    """From `learning_rate` to `end_lr` over `decay_steps`."""

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        end_lr: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        _check_start(last_epoch, verbose)
        super().__init__(learning_rate, decay_steps, end_lr, power, cycle)


class LinearWarmup(_Counted, _lr.LinearWarmup):
    """A straight line from `start_lr` to `end_lr`, then another schedule."""

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        warmup_steps: int,
        start_lr: float,
        end_lr: float,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        _check_start(last_epoch, verbose)
        super().__init__(learning_rate, warmup_steps, start_lr, end_lr)


__all__ = [name for name in dir() if name[0].isupper() and name != "Sequence"]
__getattr__ = compat.absent(__name__, __all__)
