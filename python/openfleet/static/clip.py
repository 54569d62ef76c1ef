"""Gradient clipping. The worker clips the gradients of a step before it pushes them.

>>> adam = static.optimizer.Adam(0.001, grad_clip=static.clip.ClipGradByGlobalNorm(10.0))
"""

from __future__ import annotations

from typing import Any

from .._deprecated import IGNORED, accepts_deprecated


class ClipGradByValue:
    """Limits every element of a gradient to `[min, max]`; `min` is `-max` by default.

    >>> sgd = static.optimizer.SGD(0.1, grad_clip=static.clip.ClipGradByValue(1.0))
    """

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max, self.min = float(max), float(-max if min is None else min)

    def to_json(self) -> Any:
        """Returns the JSON that the engine reads."""
        return {"value": {"min": self.min, "max": self.max}}


class ClipGradByNorm:
    """Scales each gradient whose Euclidean norm is above `clip_norm` down to that norm.

    >>> sgd = static.optimizer.SGD(0.1, grad_clip=static.clip.ClipGradByNorm(1.0))
    """

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = float(clip_norm)

    def to_json(self) -> Any:
        """Returns the JSON that the engine reads."""
        return {"norm": self.clip_norm}


class ClipGradByGlobalNorm:
    """Scales all gradients of a step by one factor, so that their common Euclidean norm is at most `clip_norm`.

    >>> sgd = static.optimizer.SGD(0.1, grad_clip=static.clip.ClipGradByGlobalNorm(10.0))
    """

    @accepts_deprecated(group_name=IGNORED)
    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = float(clip_norm)

    def to_json(self) -> Any:
        """Returns the JSON that the engine reads."""
        return {"global_norm": self.clip_norm}
