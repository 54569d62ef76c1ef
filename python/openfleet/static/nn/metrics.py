"""Metrics, computed in the program from every batch."""

from __future__ import annotations

from typing import Any

from ..._deprecated import Deprecated, accepts_deprecated
from ..program import Variable
from ._ops import net_of, variable

Auc = tuple[Variable, Variable, list[Variable]]


def check_auc(curve: str, topk: int, ins_tag_weight: Any) -> None:
    """Raises NotImplementedError for PaddlePaddle's options of `auc` that do not exist here."""
    if curve != "ROC" or ins_tag_weight is not None or topk != 1:
        raise NotImplementedError("`auc` has the curve `ROC`, `topk` 1 and no weights")


def check_accuracy(correct: Any, total: Any) -> None:
    """Raises NotImplementedError for PaddlePaddle's outputs of `accuracy` that do not exist here."""
    if correct is not None or total is not None:
        raise NotImplementedError("`correct` and `total` of `accuracy`: it returns the share only")


def _auc_option(name: str) -> Deprecated:
    def check(value: Any) -> dict[str, Any]:
        check_auc(**{"curve": "ROC", "topk": 1, "ins_tag_weight": None, name: value})
        return {}

    return Deprecated("leave it out, there is one value", check)


def _accuracy_output(value: Any) -> dict[str, Any]:
    check_accuracy(value, None)
    return {}


_OUTPUT = Deprecated("use the returned variable", _accuracy_output)


@accepts_deprecated(
    "input label curve num_thresholds topk slide_steps ins_tag_weight",
    curve=_auc_option("curve"),
    topk=_auc_option("topk"),
    ins_tag_weight=_auc_option("ins_tag_weight"),
)
def auc(input: Variable, label: Variable, *, num_thresholds: int = 4095, slide_steps: int = 1) -> Auc:
    """Counts predictions in histograms and returns the area under the ROC curve.

    Args:
        input: Probabilities [B, 1], or [B, 2] with the probability of a click in the second column.
        label: [B, 1] `int64`, 0 or 1.
        num_thresholds: How many buckets each histogram has.
        slide_steps: Over how many of the last batches the second result is; 0 for all batches.

    Returns:
        The AUC [1] over all batches since the counters were reset, the AUC [1] over the last `slide_steps` batches, and
        the four counters: positives and negatives per bucket, of the last batches and of all batches.
        `fleet.metrics.auc` computes the AUC of all workers from counters.

    >>> p, label = static.data("p", [None, 1]), static.data("label", [None, 1], "int64")
    >>> auc, batch_auc, counters = static.nn.auc(p, label)
    >>> _ = exe.run(static.default_startup_program())
    >>> exe.run(feed={"p": [[0.9], [0.1]], "label": [[1], [0]]}, fetch_list=[auc])[0].tolist()
    [1.0]
    """
    return auc_variables(net_of(input, label).auc(input.name, label.name, num_thresholds, slide_steps))


def auc_variables(names: tuple[str, str, list[str]]) -> Auc:
    """Returns the variables of an `auc` op from their names."""
    auc, batch_auc, counters = names
    return variable(auc), variable(batch_auc), [variable(counter) for counter in counters]


@accepts_deprecated(correct=_OUTPUT, total=_OUTPUT)
def accuracy(input: Variable, label: Variable, k: int = 1) -> Variable:
    """Returns the share of rows whose label is among the k classes with the highest scores, [1].

    Args:
        input: Scores [B, C], one per class.
        label: The class [B, 1] as `int64`.
        k: How many classes count as a hit.

    >>> scores, label = static.nn.literal([[0.9, 0.1], [0.8, 0.2]]), static.nn.literal([[0], [1]])
    >>> exe.run(fetch_list=[static.nn.accuracy(scores, label)])[0].tolist()
    [0.5]
    """
    return variable(net_of(input, label).accuracy(input.name, label.name, k)[0])
