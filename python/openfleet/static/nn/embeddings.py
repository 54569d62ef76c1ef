"""Embeddings: from ids to trained vectors.

Letters: B batch size, D size of a vector, V size of the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ..._deprecated import IGNORED, Deprecated, accepts_deprecated
from ..entry import EntryAttr
from ..param_attr import attr_json, with_defaults
from ..program import Variable
from ._ops import dtype_name, net_of, unique_name, variable
from .shapes import MovedIds, unsqueeze

LookUp = Callable[["str", "str | None"], Variable]


def can_be_looked_up(ids: Variable) -> bool:
    """Returns whether a sparse table can be looked up with these ids: they are fed, or all fed ids in another shape."""
    return isinstance(ids, MovedIds) or ids.kind == "data"


def check_dtype(dtype: Any) -> None:
    """Raises NotImplementedError for a dtype that embedding rows cannot have."""
    if dtype_name(dtype) != "float32":
        raise NotImplementedError(f"`dtype` `{dtype}` of an embedding: rows are `float32`")


def check_table(table_class: str, is_test: bool) -> None:
    """Raises NotImplementedError for PaddlePaddle's kinds of tables that do not exist here."""
    if table_class not in ("MemorySparseTable", "CommonSparseTable"):
        raise NotImplementedError(f"`table_class` `{table_class}`: rows are kept in memory (`MemorySparseTable`)")
    if is_test:
        raise NotImplementedError("`is_test=True`: a program's copy `clone(for_test=True)` creates no rows")


def _checked(check: Callable[[Any], None]) -> Callable[[Any], dict[str, Any]]:
    return lambda value: check(value) or {}  # type: ignore[func-returns-value]


_DTYPE = Deprecated("leave it out, rows are `float32`", _checked(check_dtype))
_IS_DISTRIBUTED = Deprecated("write `is_sparse=True`", lambda value: {"is_sparse": True} if value else {})
_IS_TEST = Deprecated(
    "leave it out, `Program.clone(for_test=True)` creates no rows",
    _checked(lambda is_test: check_table("MemorySparseTable", is_test)),
)
_TABLE_CLASS = Deprecated("leave it out, rows are kept in memory", _checked(lambda name: check_table(name, False)))


@accepts_deprecated(
    "input size is_sparse is_distributed padding_idx param_attr dtype pooling name",
    is_distributed=_IS_DISTRIBUTED,
    dtype=_DTYPE,
    name=IGNORED,
)
def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    *,
    padding_idx: int | None = None,
    param_attr: Any = None,
    pooling: str | None = None,
    storage: str = "float32",
) -> Variable:
    """Looks up the vector of every id in a table of V rows of D floats, which is trained with the model.

    With `is_sparse=True` the table is a sparse table: it creates a row when its id is first seen in training, and a
    step pulls and pushes only the rows of its batch. In a job with servers the rows are spread over all of them.
    Without `is_sparse` the table is a dense parameter [V, D], which every worker keeps whole: use it for small
    vocabularies. `sparse_embedding` is a sparse table without a bound on its ids.

    Args:
        input: `int64` ids from 0 to V - 1: data of a fixed shape [B, ...], or a slot (`lod_level=1`) with any number of
            ids per row.
        size: `[V, D]`.
        is_sparse: Whether the rows are kept in a sparse table.
        padding_idx: An id whose vector is always zeros and is never trained.
        param_attr: How the table is named, initialised and trained. Two embeddings with the same name share a table.
        pooling: How the vectors of a slot's row become one vector: `sum`, `mean` or `sqrtn` (the sum divided by the
            square root of the number of ids). A row without ids gives zeros. `each` does not combine them, for the
            layers on sequences. None leaves the choice to these layers; without one it is `sum`.
        storage: How a sparse table keeps its weights: `float32`, or `bfloat16` for half the memory. Updates of
            `bfloat16` rows are computed in 32 bits and rounded at random to one of the two nearest values, so that
            small updates are right in the mean; a repeated run rounds alike. Not for `ShowClickEntry`, nor in geo mode.

    Returns:
        [B, ..., D] for ids of a fixed shape [B, ...]; [B, D] for a slot, or [N, D] for N ids with `pooling="each"`.

    Raises:
        ValueError: The input holds no ids, two embeddings of one table do not agree on its size, or there is no such
            `storage`, or it is given without `is_sparse`. While the program runs: an id is not below V.

    Look up a slot, with one vector of 8 floats per row of the batch:

    >>> clicks = static.data("clicks", [None, 1], "int64", lod_level=1)
    >>> static.nn.embedding(clicks, size=[1000, 8], is_sparse=True, pooling="mean").shape
    (-1, 8)

    Look up one id per row in the same table as another field, by its name:

    >>> item = static.data("item", [None, 1], "int64")
    >>> table = static.ParamAttr(name="items", initializer=static.initializer.Uniform(-0.1, 0.1))
    >>> static.nn.embedding(item, size=[1000, 8], is_sparse=True, param_attr=table).shape
    (-1, 1, 8)

    Keep many rows in little memory, with one float of optimizer state per row:

    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> vector = static.nn.embedding(user, [10**9, 16], is_sparse=True, pooling="sum", storage="bfloat16")
    >>> loss = static.nn.mean(static.nn.fc(vector, size=1))
    >>> pairs = static.optimizer.RowwiseAdagrad(0.05).minimize(loss)[1]
    """
    if storage != "float32" and not is_sparse:
        raise ValueError(f"`storage={storage!r}` is only for rows of sparse tables (`is_sparse=True`)")
    rows, dim = int(size[0]), int(size[1])
    if is_sparse and isinstance(input, MovedIds):
        attr = with_defaults(param_attr, unique_name("embedding.w"))
        return input.each(
            lambda ids: embedding(
                ids, size, True, padding_idx=padding_idx, param_attr=attr, pooling="each", storage=storage
            )
        )
    if is_sparse:
        return _sparse(input, dim, rows, padding_idx, param_attr, pooling, storage)
    net = net_of(input)

    def look_up(pooling: str, table: str | None = None) -> Variable:
        attr = attr_json(with_defaults(param_attr, table))
        return variable(net.dense_embedding(input.name, [rows, dim], attr, pooling, padding_idx))

    return _pooled(input, look_up, pooling)


@accepts_deprecated(
    "input size padding_idx is_test entry table_class param_attr dtype slot pooling",
    is_test=_IS_TEST,
    table_class=_TABLE_CLASS,
    dtype=_DTYPE,
    slot=IGNORED,
)
def sparse_embedding(
    input: Variable,
    size: Sequence[int],
    padding_idx: int | None = None,
    *,
    entry: Any = None,
    param_attr: Any = None,
    pooling: str | None = None,
    storage: str = "float32",
) -> Variable:
    """Looks up the vector of every id in a sparse table without a bound on its ids.

    It is `embedding(is_sparse=True)` for ids that are hashes: any 64-bit id is valid, whatever `size[0]` is.

    Args:
        input: `int64` ids of a fixed shape [B, ...], or a slot (`lod_level=1`).
        size: `[V, D]`. D is the size of a vector; V is not used.
        padding_idx: An id whose vector is always zeros and is never trained.
        entry: Which ids get a row: `CountFilterEntry`, `ProbabilityEntry` or `ShowClickEntry`. All ids by default. An
            id without a row reads as zeros.
        param_attr: How the table is named, initialised and trained.
        pooling: `sum`, `mean` or `sqrtn` over the ids of a slot's row, or `each`, as for `embedding`.
        storage: `float32` or `bfloat16`, as for `embedding`.

    Returns:
        [B, ..., D] for ids of a fixed shape [B, ...]; [B, D] for a slot, or [N, D] for N ids with `pooling="each"`.

    Raises:
        TypeError: `entry` is not one of the three rules.
        ValueError: There is no such `storage`.

    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> seen_twice = static.CountFilterEntry(2)
    >>> static.nn.sparse_embedding(user, size=[0, 16], entry=seen_twice, pooling="sum").shape
    (-1, 16)
    """
    if entry is not None and not isinstance(entry, EntryAttr):
        raise TypeError(f"`entry` expects an admission rule such as CountFilterEntry, got {type(entry).__name__}")
    if isinstance(input, MovedIds):
        attr = with_defaults(param_attr, unique_name("embedding.w"))
        return input.each(
            lambda ids: sparse_embedding(
                ids, size, padding_idx, entry=entry, param_attr=attr, pooling="each", storage=storage
            )
        )
    rows = None if entry is None else json.dumps(entry.to_json())
    return _sparse(input, int(size[1]), None, padding_idx, param_attr, pooling, storage, rows)


class SlotEmbedding(Variable):
    """The vectors of a slot's ids before pooling. Layers on sequences see one row for each id, other layers the sum.

    >>> clicks = static.data("clicks", [None, 1], "int64", lod_level=1)
    >>> rows = static.nn.embedding(clicks, size=[100, 4], is_sparse=True)
    >>> static.nn.sequence_pool(rows, "mean").shape
    (-1, 4)
    """

    def __init__(self, slot: Variable, look_up: LookUp) -> None:
        self.program, self._slot, self._look_up = slot.program, slot, look_up
        self._by_pooling: dict[str, Variable] = {}
        self._first_looked_up: str | None = None
        self._otherwise, self._axes = "sum", list[int]()

    def pool(self, pooling: str) -> Variable:
        """Returns one vector per row of the batch, [B, D]; with `each` one per id, [N, D]."""
        if pooling not in self._by_pooling:
            vectors = self._look_up(pooling, self._table())
            self._first_looked_up = self._first_looked_up or vectors.name
            self._by_pooling[pooling] = unsqueeze(vectors, self._axes) if self._axes else vectors
        return self._by_pooling[pooling]

    def with_rows(self, axes: Sequence[int] = ()) -> SlotEmbedding:
        """Returns the same, as in PaddlePaddle: all layers see one row for each id, with dimensions of 1 at `axes`."""
        self._otherwise, self._axes = "each", list(axes)
        return self

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.pool(self._otherwise).name

    def _table(self) -> str | None:
        """The table that an earlier pooling has looked up, which another pooling shares."""
        if self._first_looked_up is None:
            return None
        return next(
            inputs[1] for _, inputs, outputs in self.program._native.nodes() if self._first_looked_up in outputs
        )


def _sparse(
    input: Variable,
    dim: int,
    vocabulary: int | None,
    padding_idx: int | None,
    param_attr: Any,
    pooling: str | None,
    storage: str,
    rows: str | None = None,
) -> Variable:
    net = net_of(input)

    def look_up(pooling: str, table: str | None = None) -> Variable:
        attr = attr_json(with_defaults(param_attr, table))
        return variable(net.embedding(input.name, dim, attr, pooling, vocabulary, rows, storage, padding_idx))

    return _pooled(input, look_up, pooling)


def _pooled(input: Variable, look_up: LookUp, pooling: str | None) -> Variable:
    if pooling is not None:
        return look_up(pooling, None)
    return SlotEmbedding(input, look_up) if input.lod_level else look_up("each", None)
