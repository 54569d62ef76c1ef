"""`paddle.metric`: accuracy as an op, and metrics that are computed from fetched arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from openfleet import compat
from openfleet.static.program import Variable

from ._layers import accuracy as _accuracy


def accuracy(
    input: Variable, label: Variable, k: int = 1, correct: Any = None, total: Any = None, name: str | None = None
) -> Variable:
    """Returns the share of rows whose label is among the k classes with the highest scores."""
    return _accuracy(input, label, k, correct, total)


class Metric:
    """Counts over batches. Subclasses override `reset`, `update`, `accumulate` and `name`."""

    def reset(self) -> None:
        """Forgets all batches."""
        raise NotImplementedError(f"`reset` of {type(self).__name__}")

    def update(self, *args: Any) -> Any:
        """Counts a batch."""
        raise NotImplementedError(f"`update` of {type(self).__name__}")

    def accumulate(self) -> Any:
        """Returns the value over all batches."""
        raise NotImplementedError(f"`accumulate` of {type(self).__name__}")

    def name(self) -> Any:
        """Returns its name."""
        raise NotImplementedError(f"`name` of {type(self).__name__}")

    def compute(self, *args: Any) -> Any:
        """Returns what `update` takes: the arrays themselves."""
        return args


class Accuracy(Metric):
    """The share of rows whose label is among the k classes with the highest scores, for each of `topk`."""

    total: list[float]
    count: list[int]

    def __init__(self, topk: Sequence[int] = (1,), name: str | None = None) -> None:
        self.topk, self._name = tuple(topk), name or "acc"
        self.reset()

    def compute(self, pred: Any, label: Any, *args: Any) -> Any:
        """Returns, for each row and each of the greatest k scores, whether it is the label."""
        pred, label = np.asarray(pred), np.asarray(label)
        best = np.argsort(-pred, axis=-1, kind="stable")[..., : max(self.topk)]
        if label.ndim == pred.ndim and label.shape[-1] > 1:
            label = label.argmax(axis=-1)
        return (best == label.reshape(*best.shape[:-1], 1)).astype(np.float32)

    def update(self, correct: Any, *args: Any) -> Any:
        """Counts a batch. Returns the accuracy of the batch."""
        rows = np.asarray(correct).reshape(-1, np.shape(correct)[-1])
        found = [rows[:, :k].sum() for k in self.topk]
        self.total = [total + one for total, one in zip(self.total, found)]
        self.count = [count + len(rows) for count in self.count]
        shares = [float(one) / max(1, len(rows)) for one in found]
        return shares[0] if len(shares) == 1 else shares

    def reset(self) -> None:
        """Forgets all batches."""
        self.total = [0.0] * len(self.topk)
        self.count = [0] * len(self.topk)

    def accumulate(self) -> Any:
        """Returns the accuracy over all batches."""
        shares = [float(total) / count if count else 0.0 for total, count in zip(self.total, self.count)]
        return shares[0] if len(shares) == 1 else shares

    def name(self) -> list[str]:
        """Returns one name for each of `topk`."""
        return [f"{self._name}_top{k}" for k in self.topk] if len(self.topk) > 1 else [self._name]


class _Binary(Metric):
    """Counts of right and wrong predictions of two classes, at the threshold of 0.5."""

    _word = ""

    def __init__(self, name: str | None = None) -> None:
        self._name = name or self._word
        self.reset()

    def update(self, preds: Any, labels: Any) -> None:
        """Counts a batch of probabilities and labels of 0 and 1."""
        predicted = np.floor(np.asarray(preds).reshape(-1) + 0.5).astype(int)
        labels = np.asarray(labels).reshape(-1)
        self.tp += int(((predicted == 1) & (labels == 1)).sum())
        self.fp += int(((predicted == 1) & (labels != 1)).sum())
        self.fn += int(((predicted != 1) & (labels == 1)).sum())

    def reset(self) -> None:
        """Forgets all batches."""
        self.tp = self.fp = self.fn = 0

    def name(self) -> str:
        """Returns its name."""
        return self._name


class Precision(_Binary):
    """The share of right ones among the rows that are predicted as 1."""

    _word = "precision"

    def accumulate(self) -> float:
        """Returns the precision over all batches."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0


class Recall(_Binary):
    """The share of the rows with label 1 that are predicted as 1."""

    _word = "recall"

    def accumulate(self) -> float:
        """Returns the recall over all batches."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Auc(Metric):
    """The area under the ROC curve, from counts in `num_thresholds` bins of the score."""

    def __init__(self, curve: str = "ROC", num_thresholds: int = 4095, name: str | None = None) -> None:
        if curve != "ROC":
            raise NotImplementedError(f"`curve={curve!r}` of Auc: there is `ROC`")
        self._bins, self._name = num_thresholds, name or "auc"
        self.reset()

    def update(self, preds: Any, labels: Any) -> None:
        """Counts a batch: scores `[rows, 2]` or `[rows, 1]`, of which the last column is the probability of 1."""
        preds, labels = np.asarray(preds), np.asarray(labels).reshape(-1)
        scores = preds.reshape(len(labels), -1)[:, -1]
        bins = np.clip((scores * self._bins).astype(int), 0, self._bins)
        np.add.at(self._positive, bins[labels == 1], 1)
        np.add.at(self._negative, bins[labels != 1], 1)

    def reset(self) -> None:
        """Forgets all batches."""
        self._positive = np.zeros(self._bins + 1, np.int64)
        self._negative = np.zeros(self._bins + 1, np.int64)

    def accumulate(self) -> float:
        """Returns the area over all batches; 0 if one of the classes is missing."""
        positive, negative = self._positive[::-1], self._negative[::-1]
        above = np.cumsum(positive) - positive / 2.0
        pairs = float(positive.sum()) * float(negative.sum())
        return float((negative * above).sum() / pairs) if pairs else 0.0

    def name(self) -> str:
        """Returns its name."""
        return self._name


__all__ = ["Accuracy", "Auc", "Metric", "Precision", "Recall", "accuracy"]
__getattr__ = compat.absent(__name__, __all__)
