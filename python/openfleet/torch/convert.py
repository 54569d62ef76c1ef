"""Swaps PyTorch's embeddings for those of OpenFleet, and back: `convert` and `to_local`."""

from __future__ import annotations

import copy
from typing import Any

import torch

from .._log import logger
from ..static import initializer
from .embeddings import Embedding, EmbeddingBag, EmbeddingCollection, _OneTable, inputs_of, modules_of


def convert(model: torch.nn.Module, *, bounded: bool = True, **options: Any) -> torch.nn.Module:
    """Swaps each `nn.Embedding` and `nn.EmbeddingBag` of a model for one of OpenFleet that begins with its weights.

    The model itself changes; call it before the optimizer is created. Embeddings that share a weight share a table.
    Frozen embeddings stay as they are.

    Args:
        model: The model, or one embedding.
        bounded: Whether ids stay below `num_embeddings`; otherwise new ids get rows when they are first trained.
        options: Of every table, as of `Embedding`: `initializer`, `optimizer`, `entry`, `storage`.

    Returns:
        The model.

    Raises:
        ValueError: The model has no embedding, or other layers share an embedding's weight.
        NotImplementedError: An embedding has an option that tables do not have, such as `max_norm`.

    >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Flatten(), torch.nn.Linear(8, 1))
    >>> convert(model)[0]
    Embedding(10, 4, table='0.rows')
    """
    found = {path: module for path, module in model.named_modules() if type(module) in _KINDS}
    if not found:
        raise ValueError("the model has no `nn.Embedding` or `nn.EmbeddingBag`")
    _check_shared_weights(model, found)
    swapped: dict[int, Embedding | EmbeddingBag] = {}
    # By weight: embeddings that share one get one table.
    names: dict[int, str] = {}
    for path, module in found.items():
        if not module.weight.requires_grad:
            logger.warning("the embedding `%s` is frozen: it stays a module of PyTorch", path)
            continue
        name = names.setdefault(id(module.weight), f"{path}.rows" if path else "rows")
        swapped[id(module)] = _converted(path, module, bounded, {"table": name, **options})
    if id(model) in swapped:
        return swapped[id(model)]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if id(child) in swapped:
                parent._modules[name] = swapped[id(child)]
    return model


_KINDS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


def _check_shared_weights(model: torch.nn.Module, found: dict[str, Any]) -> None:
    weights = {id(module.weight): path for path, module in found.items()}
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if path not in found and id(parameter) in weights:
                raise ValueError(
                    f"the weight of the embedding `{weights[id(parameter)]}` is also `{path}.{name}`: "
                    "a table cannot be a parameter of a layer\n\nhint: give the layer a weight of its own"
                )


def _converted(path: str, module: Any, bounded: bool, options: dict[str, Any]) -> Embedding | EmbeddingBag:
    for option, allowed in (("max_norm", None), ("scale_grad_by_freq", False)):
        if getattr(module, option) != allowed:
            raise NotImplementedError(f"`{option}={getattr(module, option)}` of the embedding `{path}`")
    weight = module.weight.detach()
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        raise ValueError(f"the embedding `{path}` is {weight.dtype} on {weight.device}: rows are float32 on the CPU")
    padding = module.padding_idx
    if isinstance(module, torch.nn.EmbeddingBag):
        options = {"mode": module.mode, "include_last_offset": module.include_last_offset, **options}
    elif padding is not None and weight[padding].any():
        raise ValueError(f"the embedding `{path}` has a padding vector that is not zeros: padding is zeros in tables")
    sizes = weight.shape if bounded else weight.shape[1:]
    kind = EmbeddingBag if isinstance(module, torch.nn.EmbeddingBag) else Embedding
    converted = kind(*sizes, padding_idx=padding, **options)
    converted.table.weights = weight
    return converted.train(module.training)


def to_local(model: torch.nn.Module, *, sparse: bool = False) -> torch.nn.Module:
    """Returns a copy of a model whose embeddings are PyTorch's, with the rows as they are now.

    Call it on one worker, while the job runs. Without `num_embeddings`, the embeddings of the copy know the ids that
    have a row (`RemappedEmbedding`).

    Args:
        model: The model, or one embedding.
        sparse: Whether the gradients of the copy's embeddings are sparse.

    Raises:
        openfleet.OrderError: The model has no tables yet.
    """
    memo: dict[int, Any] = {}
    embeddings: list[Any] = [module for module in model.modules() if isinstance(module, _OneTable)]
    done: dict[tuple[str, int | None], Any] = {}
    for module in embeddings:
        of_table = [each for each in embeddings if each.table.key == module.table.key]
        memo[id(module)] = _local(module, of_table, sparse, done)
    for module in model.modules():
        if isinstance(module, EmbeddingCollection):
            features = {name: memo[id(feature)] for name, feature in module.features.items()}
            memo[id(module)] = LocalEmbeddingCollection(features).train(module.training)
    # `deepcopy` takes what it finds in `memo` as the copies.
    return copy.deepcopy(model, memo)


def _local(module: Any, of_table: list[Any], sparse: bool, done: dict[Any, Any]) -> torch.nn.Module:
    """The module as one of PyTorch. Modules of a table share their weight if their padding allows it."""
    is_bag, is_bounded = isinstance(module, EmbeddingBag), module.table.rows is not None
    # An `nn.Embedding` returns the row of its padding, which is zeros; bags skip theirs.
    zeros = {each.padding_idx for each in of_table if not isinstance(each, EmbeddingBag)}
    zero = module.padding_idx if module.padding_idx in zeros else None
    if (module.table.key, zero) not in done:
        tables, key = module.tables(), module.table.key
        if is_bounded:
            ids = torch.arange(module.table.rows)
        else:
            # PyTorch wants the padding among the rows.
            paddings = [each.padding_idx for each in of_table if each.padding_idx is not None]
            ids = torch.cat([tables.ids(key), torch.tensor(paddings, dtype=torch.int64)]).unique()
        rows = tables.rows(key, ids)
        rows[ids == zero] = 0.0
        if not is_bounded:
            rows = torch.cat([rows, _unknown_row(module)])
        done[key, zero] = ids, torch.nn.Parameter(rows)
    ids, weight = done[module.table.key, zero]
    options = {"padding_idx": module.padding_idx, "sparse": sparse}
    if is_bag:
        options.update(mode=module.mode, include_last_offset=module.include_last_offset)
    kind: Any
    if is_bounded:
        kind = torch.nn.EmbeddingBag if is_bag else torch.nn.Embedding
        local = kind(*weight.shape, _weight=weight.data, **options)
    else:
        kind = RemappedEmbeddingBag if is_bag else RemappedEmbedding
        local = kind(ids, weight.data, **options)
    local.weight = weight
    return local.train(module.training)


def _unknown_row(module: Any) -> torch.Tensor:
    """The row of ids without a row [1, D]: their first values if those are constant, else zeros."""
    first = module.table.initializer
    is_constant = isinstance(first, initializer.Constant) and module.table.entry is None
    return torch.full((1, module.embedding_dim), first.to_json()["constant"] if is_constant else 0.0)


class _Remapped(torch.nn.Module):
    """The rows of known ids, U of them, and one more for all others.

    In `ids` [U] they are in ascending order; row i of `weight` [U + 1, D] is that of `ids[i]`.
    """

    ids: torch.Tensor

    def __init__(self, ids: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None, **options: Any) -> None:
        position = None if padding_idx is None else int((ids == padding_idx).nonzero())
        super().__init__(*weight.shape, padding_idx=position, _weight=weight, **options)
        self.register_buffer("ids", ids)

    def positions(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the row of each id."""
        if len(self.ids) == 0:
            return torch.zeros_like(input)
        at = torch.searchsorted(self.ids, input).clamp(max=len(self.ids) - 1)
        return torch.where(self.ids[at] == input, at, len(self.ids))


class RemappedEmbedding(_Remapped, torch.nn.Embedding):
    """An `nn.Embedding` of given ids, which may be any 64-bit integers. Other ids share one row."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the vector of each id."""
        return super().forward(self.positions(input))


class RemappedEmbeddingBag(_Remapped, torch.nn.EmbeddingBag):
    """An `nn.EmbeddingBag` of given ids, which may be any 64-bit integers. Other ids share one row."""

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns one vector per bag."""
        return super().forward(self.positions(input), offsets, per_sample_weights)


class LocalEmbeddingCollection(torch.nn.Module):
    """An `EmbeddingCollection` whose embeddings are PyTorch's."""

    def __init__(self, features: dict[str, Any]) -> None:
        super().__init__()
        self.features = modules_of(features)

    def forward(self, features: Any) -> dict[str, torch.Tensor]:
        """Returns the vectors of each feature."""
        return {name: self.features[name](*given) for name, given in inputs_of(features, self.features).items()}
