"""Models of click prediction, and word2vec. Default sizes are those of PaddlePaddle's models.

All click models take these arguments: `slots`, a list of slots; `dense`, floats [B, N], or None; `label`, [B, 1]
`int64`, 1 for a click; `dim`, the size of an embedding vector; `hidden`, the sizes of the dense layers.

All slots of a click model are looked up in one table. Equal ids of different slots are different features: ids are
salted with the slot's name, in training and in everything that reads the saved model. Callers pass plain ids.
`share_ids=True` makes equal ids one feature: for slots with a common vocabulary, and for checkpoints from before salts.
`storage="bfloat16"` keeps the rows of the table in 16 bits per weight, as for `static.nn.embedding`.

>>> from openfleet import models
>>> slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(3)]
>>> dense, label = static.data("dense", [None, 2]), static.data("label", [None, 1], "int64")
>>> model = models.wide_deep(slots, dense, label, hidden=[16, 8])
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
    """The variables of a click model.

    Attributes:
        loss: The mean loss [1], to minimize.
        probability: The probability of a click per row, [B, 1]; of `ctr_dnn` those of no click and of a click, [B, 2].
        auc: The AUC [1] over all batches.
        batch_auc: The AUC [1] over the last batches.
        auc_counters: The counters of the AUC, for `fleet.metrics.auc`.

    >>> from openfleet import models
    >>> slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(3)]
    >>> label = static.data("label", [None, 1], "int64")
    >>> models.ctr_dnn(slots, None, label, hidden=[8]).loss.shape
    (1,)
    """

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
    storage: str = "float32",
) -> ClickModel:
    """CTR-DNN: embeddings and floats, dense layers, and a softmax of two classes.

    >>> from openfleet import models
    >>> slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(3)]
    >>> label = static.data("label", [None, 1], "int64")
    >>> models.ctr_dnn(slots, None, label, dim=4, hidden=[16, 8]).probability.shape
    (-1, 2)
    """
    return _click("ctr_dnn", slots, dense, label, dim, list(hidden), share_ids, storage)


def wide_deep(
    slots: Sequence[Variable],
    dense: Variable | None,
    label: Variable,
    dim: int = 9,
    hidden: Sequence[int] = (512, 256, 128, 32),
    wide_ids: bool = False,
    share_ids: bool = False,
    storage: str = "float32",
) -> ClickModel:
    """Wide & Deep (Cheng et al. 2016): a linear part that memorizes, and dense layers that generalize.

    With `wide_ids` the linear part has a weight per id too, not only weights of `dense`.

    >>> from openfleet import models
    >>> slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(3)]
    >>> label = static.data("label", [None, 1], "int64")
    >>> dense = static.data("dense", [None, 2])
    >>> models.wide_deep(slots, dense, label, hidden=[16, 8]).probability.shape
    (-1, 1)
    """
    return _click("wide_deep", slots, dense, label, dim, list(hidden), wide_ids, share_ids, storage)


def deepfm(
    slots: Sequence[Variable],
    dense: Variable | None,
    label: Variable,
    dim: int = 9,
    hidden: Sequence[int] = (512, 256, 128, 32),
    share_ids: bool = False,
    storage: str = "float32",
) -> ClickModel:
    """DeepFM (Guo et al. 2017): a factorization machine and dense layers on the same embeddings.

    >>> from openfleet import models
    >>> slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(3)]
    >>> label = static.data("label", [None, 1], "int64")
    >>> models.deepfm(slots, None, label, dim=4, hidden=[16, 8]).probability.shape
    (-1, 1)
    """
    return _click("deepfm", slots, dense, label, dim, list(hidden), share_ids, storage)


def dcn(
    slots: Sequence[Variable],
    dense: Variable | None,
    label: Variable,
    dim: int = 9,
    crosses: int = 2,
    hidden: Sequence[int] = (512, 256, 128, 32),
    share_ids: bool = False,
    storage: str = "float32",
) -> ClickModel:
    """Deep & Cross Network (Wang et al. 2017): `crosses` cross layers and dense layers on the same input.

    >>> from openfleet import models
    >>> slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(3)]
    >>> label = static.data("label", [None, 1], "int64")
    >>> models.dcn(slots, None, label, dim=4, hidden=[16, 8]).probability.shape
    (-1, 1)
    """
    return _click("dcn", slots, dense, label, dim, crosses, list(hidden), share_ids, storage)


def word2vec(dim: int = 100, window: int = 5, negatives: int = 5) -> Variable:
    """Declares the fields `context` and `target`, and returns the loss [1] of skip-gram with negative sampling.

    `WordsDataset` feeds the fields; `window` and `negatives` are the same numbers there.

    >>> from openfleet import models
    >>> models.word2vec(dim=16).shape
    (1,)
    """
    return variable(_net_of().word2vec(dim, window, negatives))
