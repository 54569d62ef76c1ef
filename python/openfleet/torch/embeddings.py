"""Embeddings whose rows are in tables: `Embedding`, `EmbeddingBag` and `EmbeddingCollection`, which pulls once for all.

Letters: U distinct ids of a forward, D size of a row, B rows of the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from .. import _native
from .._log import logger
from ..fleet import _job
from ..static.entry import EntryAttr, ShowClickEntry
from ..static.optimizer import Optimizer
from ..static.scope import Scope
from ._tables import Table, Tables

_MODES = ("sum", "mean", "max")


class TableModule(torch.nn.Module):
    """Base class of modules that look ids up."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: Tables | None = None

    def bind(self, tables: Tables) -> None:
        """Says where the rows are. `fleet.distributed_optimizer` calls it."""
        self._tables = tables

    def is_bound_in(self, scope: Scope) -> bool:
        """Returns whether the rows are in a scope already."""
        return self._tables is not None and self._tables.scope is scope

    def tables(self) -> Tables:
        """Returns where the rows are.

        Raises:
            openfleet.OrderError: `fleet.distributed_optimizer` was not called yet.
        """
        if self._tables is None:
            hint = "call `fleet.distributed_optimizer(torch_optimizer, model=model)` before the first forward"
            raise _native.OrderError(f"`{type(self).__name__}` has no tables yet, or is a copy\n\nhint: {hint}")
        return self._tables

    def wanted(self, *given: Any) -> dict[str, torch.Tensor]:
        """Returns which ids of which tables a forward with these arguments looks up."""
        raise NotImplementedError

    def _look_up(self, wanted: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Returns for each table the rows of its distinct ids [U, D], and the position of each id among them."""
        return self.tables().look_up(self, wanted)

    # The rows of a batch are among the parameters of a module while they have gradients. They are no part of its state,
    # which has the address of the checkpoint instead: as a tensor, because some formats have only those.

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self._tables is not None and _job.checkpoint is not None:
            destination[f"{prefix}checkpoint"] = torch.frombuffer(
                bytearray(_job.checkpoint.encode()), dtype=torch.uint8
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        if f"{prefix}checkpoint" in state_dict:
            address = bytes(state_dict[f"{prefix}checkpoint"].tolist()).decode()
            if address != _job.checkpoint:
                logger.warning(
                    "the rows of `%s` are not in this state, but in the checkpoint `%s`\n\n"
                    "hint: load them with `fleet.load_model`, after `fleet.init_worker`",
                    prefix.rstrip(".") or type(self).__name__,
                    address,
                )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parameters": {}, "_tables": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self)] = copied = type(self).__new__(type(self))
        copied.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__getstate__().items()})
        return copied


class _OneTable(TableModule):
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int | None,
        padding_idx: int | None,
        table: str | None,
        initializer: Any,
        optimizer: Optimizer | None,
        entry: EntryAttr | None,
        storage: str,
        **unsupported: Any,
    ) -> None:
        super().__init__()
        if embedding_dim is None:
            self.num_embeddings, self.embedding_dim = None, int(num_embeddings)
        else:
            self.num_embeddings, self.embedding_dim = int(num_embeddings), int(embedding_dim)
        for option, value in unsupported.items():
            if value:
                raise NotImplementedError(f"`{option}={value}` of `{type(self).__name__}`: tables do not have it")
        if self.embedding_dim < 1:
            raise ValueError(f"`embedding_dim` expects at least 1, got {self.embedding_dim}")
        if isinstance(entry, ShowClickEntry):
            raise NotImplementedError("`ShowClickEntry`: a PyTorch model has no variables of shows and clicks")
        if padding_idx is not None and padding_idx < 0 and self.num_embeddings is not None:
            padding_idx += self.num_embeddings
        self.padding_idx = padding_idx
        self.table = Table(table, self.embedding_dim, self.num_embeddings, initializer, optimizer, entry, storage)

    def ids_of(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the ids that have a row, one-dimensional."""
        if input.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"`{type(self).__name__}` expects ids of int64 or int32, got {input.dtype}")
        ids = input.reshape(-1)
        return ids if self.padding_idx is None else ids[ids != self.padding_idx]

    def wanted(self, *given: Any) -> dict[str, torch.Tensor]:
        """Returns the ids of the table that a forward with these arguments looks up."""
        return {self.table.key: self.ids_of(given[0])}

    def vectors(self, input: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> tuple[Any, Any, int | None]:
        """Returns a table in which the positions of the second result are those of the input's ids; a padding id has
        the position of the third result, a row of zeros.
        """
        if self.padding_idx is None:
            return rows, positions.view(input.shape), None
        zeros = rows.new_zeros(1, self.embedding_dim)
        padding = rows.shape[0]
        has_row = input != self.padding_idx
        all_positions = torch.full(input.shape, padding, dtype=positions.dtype)
        all_positions[has_row] = positions
        return torch.cat([rows, zeros]), all_positions, padding

    def extra_repr(self) -> str:
        sizes = [str(size) for size in (self.num_embeddings, self.embedding_dim) if size is not None]
        return ", ".join(sizes) + ("" if self.table.name is None else f", table={self.table.name!r}")


class Embedding(_OneTable):
    """`torch.nn.Embedding` whose rows are in a table: in this process, or on the servers of a job.

    Ids are any 64-bit integers. A row is created when its id is first seen in training.

    Args:
        num_embeddings: D, if it is the only number; then ids have no bound. With two numbers the first one is the bound
            of the ids, as in PyTorch.
        embedding_dim: D.
        padding_idx: An id whose vector is zeros and is not trained.
        max_norm: Refused, like `scale_grad_by_freq`: tables have neither.
        sparse: Accepted; gradients of rows are always sparse.
        table: The name of the table; embeddings of one name share it. By default the name of the module in the model.
        initializer: First values of the rows, one of `static.initializer`; uniform within 1 / sqrt(D) by default.
        optimizer: The update rule of the rows with its learning rate, one of `static.optimizer`. By default the rule of
            the model's optimizer.
        entry: Which ids get a row, one of `static.CountFilterEntry` and `static.ProbabilityEntry`; all by default.
        storage: How weights are kept: `float32` or `bfloat16`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int | None = None,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = True,
        *,
        table: str | None = None,
        initializer: Any = None,
        optimizer: Optimizer | None = None,
        entry: EntryAttr | None = None,
        storage: str = "float32",
    ) -> None:
        unsupported: dict[str, Any] = {"max_norm": max_norm, "scale_grad_by_freq": scale_grad_by_freq}
        shape = num_embeddings, embedding_dim, padding_idx
        super().__init__(*shape, table, initializer, optimizer, entry, storage, **unsupported)

    @torch.compiler.disable
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the vector of each id, [..., D] for ids [...]."""
        found = self._look_up(self.wanted(input))
        return self.from_rows(*found[self.table.key], input)

    def from_rows(self, rows: torch.Tensor, positions: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        """Returns the vectors of ids whose rows are there."""
        rows, positions, _ = self.vectors(input, rows, positions)
        # The gradient of `functional.embedding` takes twice as long.
        return rows.index_select(0, positions.reshape(-1)).view(*positions.shape, rows.shape[1])


class EmbeddingBag(_OneTable):
    """`torch.nn.EmbeddingBag` whose rows are in a table: sums or means of the vectors of several ids.

    Args:
        mode: `mean`, `sum` or `max`.
        include_last_offset: Whether `offsets` ends with the number of ids.

    The other arguments are those of `Embedding`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = True,
        *,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        table: str | None = None,
        initializer: Any = None,
        optimizer: Optimizer | None = None,
        entry: EntryAttr | None = None,
        storage: str = "float32",
    ) -> None:
        unsupported: dict[str, Any] = {"max_norm": max_norm, "scale_grad_by_freq": scale_grad_by_freq}
        shape = num_embeddings, embedding_dim, padding_idx
        super().__init__(*shape, table, initializer, optimizer, entry, storage, **unsupported)
        if mode not in _MODES:
            raise ValueError(f"`mode` expects one of {', '.join(_MODES)}, got {mode!r}")
        self.mode, self.include_last_offset = mode, include_last_offset

    @torch.compiler.disable
    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns one vector per bag, [B, D]: for ids [B, L], or ids [N] with the position where each bag begins."""
        found = self._look_up(self.wanted(input))
        return self.from_rows(*found[self.table.key], input, offsets, per_sample_weights)

    def from_rows(
        self,
        rows: torch.Tensor,
        positions: torch.Tensor,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the vectors of bags whose rows are there."""
        rows, positions, padding = self.vectors(input, rows, positions)
        return functional.embedding_bag(
            positions,
            rows,
            None if offsets is None else offsets.long(),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"


class EmbeddingCollection(TableModule):
    """The embeddings of several features, whose rows are pulled in one request to each server.

    Args:
        features: The embedding of each feature, by name. Features may share a table.

    >>> collection = EmbeddingCollection(
    ...     {"user": Embedding(16), "item": Embedding(16, table="items"), "clicks": EmbeddingBag(16, table="items")}
    ... )
    """

    def __init__(self, features: Mapping[str, Embedding | EmbeddingBag]) -> None:
        super().__init__()
        self.features = modules_of(features)

    @torch.compiler.disable
    def forward(self, features: Any) -> dict[str, torch.Tensor]:
        """Returns the vectors of each feature.

        Args:
            features: By name the arguments of each feature's embedding: ids, or a tuple of ids, offsets and weights.
                Or an object with `keys()`, `values()` and `lengths()`, such as a `KeyedJaggedTensor`: the ids of the
                first feature for all rows of the batch, then those of the second. An `EmbeddingBag` pools each row, an
                `Embedding` returns one vector per id.
        """
        inputs = self._known(features)
        ids = self._ids(inputs)
        found = self._look_up({table: torch.cat(parts) for table, parts in ids.items()})
        counts = {table: [len(part) for part in parts] for table, parts in ids.items()}
        positions = {table: list(found[table][1].split(counts[table])) for table in ids}
        vectors = {}
        for name, arguments in inputs.items():
            module: Any = self.features[name]
            table = module.table.key
            vectors[name] = module.from_rows(found[table][0], positions[table].pop(0), *arguments)
        return vectors

    def wanted(self, *given: Any) -> dict[str, torch.Tensor]:
        """Returns which ids of which tables a forward of these features looks up."""
        return {table: torch.cat(parts) for table, parts in self._ids(self._known(given[0])).items()}

    def _known(self, features: Any) -> dict[str, Sequence[Any]]:
        inputs = inputs_of(features, self.features)
        unknown = sorted(set(inputs) - set(self.features))
        if unknown:
            hint = _native.nearest(unknown[0], list(self.features))
            raise KeyError(f"`EmbeddingCollection` has no feature `{unknown[0]}`; {hint}")
        return inputs

    def _ids(self, inputs: dict[str, Sequence[Any]]) -> dict[str, list[torch.Tensor]]:
        """For each table the ids of its features, in their order."""
        ids: dict[str, list[torch.Tensor]] = {}
        for name, arguments in inputs.items():
            module: Any = self.features[name]
            ids.setdefault(module.table.key, []).append(module.ids_of(arguments[0]))
        return ids


def modules_of(features: Mapping[str, torch.nn.Module]) -> torch.nn.ModuleDict:
    """Returns modules by name. Features may be called `items`, `keys` or `type`, which `ModuleDict` itself refuses."""
    modules = torch.nn.ModuleDict()
    modules._modules.update(features)
    return modules


def inputs_of(features: Any, modules: Mapping[str, torch.nn.Module]) -> dict[str, Sequence[Any]]:
    """Returns the arguments of each feature's embedding."""
    if isinstance(features, Mapping):
        return {
            name: tuple(given) if isinstance(given, (tuple, list)) else (given,) for name, given in features.items()
        }
    if not all(callable(getattr(features, method, None)) for method in ("keys", "values", "lengths")):
        raise TypeError(
            f"`EmbeddingCollection` expects a dictionary or a KeyedJaggedTensor, got {type(features).__name__}"
        )
    names, values = list(features.keys()), features.values()
    weights = getattr(features, "weights_or_none", lambda: None)()
    lengths = features.lengths().view(len(names), -1)
    ends = lengths.sum(dim=1).cumsum(0)
    inputs: dict[str, Sequence[Any]] = {}
    for index, name in enumerate(names):
        length, end = lengths[index], ends[index]
        # Slices, unlike parts of a `split`, follow the lengths in an exported graph.
        own = slice(end - length.sum(), end)
        offsets = length.cumsum(0) - length
        is_bag = name in modules and isinstance(modules[name], (EmbeddingBag, torch.nn.EmbeddingBag))
        inputs[name] = (values[own], offsets, None if weights is None else weights[own]) if is_bag else (values[own],)
    return inputs
