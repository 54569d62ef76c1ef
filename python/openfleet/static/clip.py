"""Limits on gradients, applied by the worker before they travel."""

from __future__ import annotations

from typing import Any


class ClipGradByValue:
    """Each number into `[min, max]`; `min` is `-max` where it is not given."""

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max, self.min = float(max), float(-max if min is None else min)

    def to_json(self) -> Any:
        """As the engine reads it."""
        return {"value": {"min": self.min, "max": self.max}}


class ClipGradByNorm:
    """Each gradient scaled down to this Euclidean norm where it is longer."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = float(clip_norm)

    def to_json(self) -> Any:
        """As the engine reads it."""
        return {"norm": self.clip_norm}


class ClipGradByGlobalNorm:
    """All gradients of a step scaled by one factor, down to this norm of them all."""

    def __init__(self, clip_norm: float, group_name: str = "default_group") -> None:
        self.clip_norm = float(clip_norm)

    def to_json(self) -> Any:
        """As the engine reads it."""
        return {"global_norm": self.clip_norm}
