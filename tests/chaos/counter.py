"""The model `counter` in PyTorch. Only the form `torch` imports this module: the other forms run without PyTorch."""

import torch

from openfleet import fleet, static
from openfleet.torch import EmbeddingBag, EmbeddingCollection

torch.set_num_threads(1)


class Counter(torch.nn.Module):
    """Every occurrence of an id adds -1 to its row, and every step of a worker adds -1 to a dense parameter."""

    def __init__(self, scale: int) -> None:
        super().__init__()
        zero = static.initializer.Constant(0.0)
        self.slots = EmbeddingCollection(
            {slot: EmbeddingBag(1, mode="sum", table="counter", initializer=zero) for slot in ("a", "b")}
        )
        self.steps = torch.nn.Parameter(torch.zeros(1))
        self.scale = scale

    def forward(self, slots: dict[str, list[list[int]]]) -> torch.Tensor:
        """Returns the loss of a batch: for each slot the ids of its rows."""
        vectors = self.slots({slot: _bags(rows) for slot, rows in slots.items()})
        return (sum(vector.sum() for vector in vectors.values()) + self.steps.sum()) * self.scale


def _bags(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the ids of all rows, and where each row begins."""
    lengths = torch.tensor([0, *map(len, rows)])
    return torch.tensor([key for row in rows for key in row], dtype=torch.int64), lengths.cumsum(0)[:-1]


def with_optimizer(scale: int, strategy: fleet.DistributedStrategy) -> tuple[Counter, torch.optim.Optimizer]:
    model = Counter(scale)
    return model, fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0), strategy, model)
