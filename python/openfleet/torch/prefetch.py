"""`prefetch`: the rows of the next batch are on their way while this one is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from .embeddings import TableModule


def prefetch(batches: Iterable[Any], embeddings: Mapping[TableModule, Any] | TableModule) -> Prefetched:
    """Returns the batches of a loader, and looks up the ids of each batch while the one before it is computed.

    The rows are as new as the mode promises: in sync they come with the push of the step before, in async they are
    requested at once. In one process it has no effect. The batches do not change, so every loop that takes an iterable
    takes them.

    Args:
        batches: Such as a `DataLoader`.
        embeddings: The modules that look ids up, each with what its forward gets of a batch: an index or a name, or a
            function of the batch. A tuple is several arguments, such as ids and offsets. One module alone gets the
            whole batch.

    >>> model = torch.nn.ModuleDict({"table": Embedding(4), "layer": torch.nn.Linear(4, 1)})
    >>> batches = [(torch.tensor([1, 2]), torch.tensor([0.0, 1.0])), (torch.tensor([3, 4]), torch.tensor([1.0, 0.0]))]
    >>> loader = prefetch(batches, {model["table"]: 0})
    >>> len(loader)
    2
    """
    return Prefetched(batches, embeddings)


class Prefetched:
    """What `prefetch` returns."""

    def __init__(self, batches: Iterable[Any], embeddings: Mapping[TableModule, Any] | TableModule) -> None:
        if isinstance(embeddings, TableModule):
            embeddings = {embeddings: lambda batch: batch}
        for module in embeddings:
            if not isinstance(module, TableModule):
                raise TypeError(f"`prefetch` expects embeddings of `openfleet.torch`, got {type(module).__name__}")
        self._batches, self._embeddings = batches, dict(embeddings)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._batches)
        try:
            batch = next(batches)
        except StopIteration:
            return
        self._look_ahead(batch)
        for following in batches:
            self._look_ahead(following)
            yield batch
            batch = following
        yield batch

    def _look_ahead(self, batch: Any) -> None:
        """Looks ahead what the forwards of a batch will look up in training."""
        if not torch.is_grad_enabled():
            return
        wanted: dict[int, Any] = {}
        for module, what in self._embeddings.items():
            if module.training:
                given = what(batch) if callable(what) else batch[what]
                tables = module.tables()
                ids = module.wanted(*(given if isinstance(given, tuple) else (given,)))
                wanted.setdefault(id(tables), (tables, []))[1].extend(ids.items())
        for tables, ids in wanted.values():
            tables.look_ahead(ids)
