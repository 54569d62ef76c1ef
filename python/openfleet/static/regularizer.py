"""Weight decay."""

from __future__ import annotations


class Regularizer:
    """Added to every gradient of a parameter."""

    _word = ""

    def __init__(self, coeff: float = 0.0) -> None:
        self.coeff = float(coeff)

    def to_json(self) -> dict[str, float]:
        """As the engine reads it."""
        return {self._word: self.coeff}


class L1Decay(Regularizer):
    """`coeff * sign(weight)`.

    >>> L1Decay(0.01).coeff
    0.01
    """

    _word = "l1"


class L2Decay(Regularizer):
    """`coeff * weight`."""

    _word = "l2"
