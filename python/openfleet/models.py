"""The models people train, with the shapes of the original where nothing else is asked for.

All slots of a click model are looked up in one table. Equal ids of different slots are different features: ids are
salted with the slot's name, in training and in everything that reads the saved model, whose callers give plain ids.
`share_ids=True` makes them one feature: for slots of one vocabulary, and for checkpoints that were trained before there
were salts.

>>> from openfleet import static, models
>>> with static.program_guard(static.Program(), static.Program()):
...     slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(3)]
...     dense, label = static.data("dense", [None, 2]), static.data("label", [None, 1], "int64")
...     model = models.wide_deep(slots, dense, label, hidden=[16, 8])
>>> model.probability.shape
(-1, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .static.nn._ops import variable
from .static.nn.metrics import auc_variables
from .static.program import Variable, _net_of


@dataclass(frozen=True)
class ClickModel:
    """What a click model gives."""

    loss: Variable
    probability: Variable
    auc: Variable
    batch_auc: Variable
    auc_counters: list[Variable]


def _click(model: str, slots: Sequence[Variable], dense: Variable | None, label: Variable, *shape: Any) -> ClickModel:
    net = _net_of(*slots, *([] if dense is None else [dense]), label)
    inputs = [slot.name for slot in slots], None if dense is None else dense.name, label.name
    loss, probability, auc = getattr(net, model)(*inputs, *shape)
    total, batch, counters = auc_variables(auc)
    return ClickModel(variable(loss), variable(probability), total, batch, counters)


def ctr_dnn(
    slots: Sequence[Variable],
    dense: Variable | None,
    label: Variable,
    dim: int = 10,
    hidden: Sequence[int] = (400, 400, 400),
    share_ids: bool = False,
) -> ClickModel:
    """Embeddings and floats into dense layers and a softmax of two."""
    return _click("ctr_dnn", slots, dense, label, dim, list(hidden), share_ids)


def wide_deep(
    slots: Sequence[Variable],
    dense: Variable | None,
    label: Variable,
    dim: int = 9,
    hidden: Sequence[int] = (512, 256, 128, 32),
    wide_ids: bool = False,
    share_ids: bool = False,
) -> ClickModel:
    """A linear part that remembers beside a deep part that generalises."""
    return _click("wide_deep", slots, dense, label, dim, list(hidden), wide_ids, share_ids)


def deepfm(
    slots: Sequence[Variable],
    dense: Variable | None,
    label: Variable,
    dim: int = 9,
    hidden: Sequence[int] = (512, 256, 128, 32),
    share_ids: bool = False,
) -> ClickModel:
    """Products of all pairs of fields beside a deep part."""
    return _click("deepfm", slots, dense, label, dim, list(hidden), share_ids)


def dcn(
    slots: Sequence[Variable],
    dense: Variable | None,
    label: Variable,
    dim: int = 9,
    crosses: int = 2,
    hidden: Sequence[int] = (512, 256, 128, 32),
    share_ids: bool = False,
) -> ClickModel:
    """Cross layers beside a deep part."""
    return _click("dcn", slots, dense, label, dim, crosses, list(hidden), share_ids)


def word2vec(dim: int = 100, window: int = 5, negatives: int = 5) -> Variable:
    """Skip-gram with negative sampling over the fields `context` and `target`, which it declares; gives the loss."""
    return variable(_net_of().word2vec(dim, window, negatives))
