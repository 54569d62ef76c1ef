"""`fluid.metrics`: metrics over fetched arrays, with `update` and `eval`."""

from __future__ import annotations

from typing import Any

import numpy as np

from openfleet import compat

from ..metric import Auc as _Auc
from ..metric import Precision as _Precision
from ..metric import Recall as _Recall


class Accuracy:
    """The mean of the accuracies of batches, by their sizes."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Forgets all batches."""
        self.value = self.weight = 0.0

    def update(self, value: Any, weight: Any) -> None:
        """Counts a batch: its accuracy and its number of rows."""
        self.value += float(np.sum(np.asarray(value) * np.asarray(weight)))
        self.weight += float(np.sum(weight))

    def eval(self) -> float:
        """Returns the accuracy over all batches."""
        if self.weight == 0.0:
            raise ValueError("`eval` of Accuracy before `update`: there is no row")
        return self.value / self.weight


class Auc(_Auc):
    """The area under the ROC curve."""

    def __init__(self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095) -> None:
        super().__init__(curve, num_thresholds, name)

    def eval(self) -> float:
        """Returns the area over all batches."""
        return self.accumulate()


class Precision(_Precision):
    """The share of right ones among the rows that are predicted as 1."""

    def eval(self) -> float:
        """Returns the precision over all batches."""
        return self.accumulate()


class Recall(_Recall):
    """The share of the rows with label 1 that are predicted as 1."""

    def eval(self) -> float:
        """Returns the recall over all batches."""
        return self.accumulate()


__all__ = ["Accuracy", "Auc", "Precision", "Recall"]
__getattr__ = compat.absent(__name__, __all__)
