"""Weight decay: a term that is added to every gradient of a parameter.

>>> sgd = static.optimizer.SGD(0.1, weight_decay=static.regularizer.L2Decay(1e-4))
"""

from __future__ import annotations


class Regularizer:
    """Base class: a term that is added to every gradient of a parameter.

    >>> isinstance(static.regularizer.L2Decay(1e-4), Regularizer)
    True
    """

    _word = ""

    def __init__(self, coeff: float = 0.0) -> None:
        self.coeff = float(coeff)

    def to_json(self) -> dict[str, float]:
        """Returns the JSON that the engine reads."""
        return {self._word: self.coeff}


class L1Decay(Regularizer):
    """Adds `coeff * sign(weight)` to the gradient.

    >>> L1Decay(0.01).coeff
    0.01
    """

    _word = "l1"


class L2Decay(Regularizer):
    """Adds `coeff * weight` to the gradient.

    >>> static.regularizer.L2Decay(1e-4).coeff
    0.0001
    """

    _word = "l2"
