"""PyTorch models whose embeddings are tables of OpenFleet: on the servers of a job, or in the process.

    pip install openfleet[torch]

    from openfleet import fleet
    from openfleet.torch import Embedding

    fleet.init()
    model = torch.nn.Sequential(Embedding(16), torch.nn.Flatten(), torch.nn.Linear(26 * 16, 1))
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=1e-3), model=model)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    else:
        fleet.init_worker()
        ...  # the loop, as before
        fleet.stop_worker()

Forward pulls the rows of its distinct ids. Backward leaves their gradients at the rows, where clipping and loss scaling
find them among `model.parameters()`. `optimizer.step()` pushes the gradients of rows and parameters in one step of the
job.
"""

from __future__ import annotations

from .convert import RemappedEmbedding, RemappedEmbeddingBag, convert, to_local
from .dataset import Dataset
from .embeddings import Embedding, EmbeddingBag, EmbeddingCollection
from .onnx import export_onnx
from .optimizer import DistributedOptimizer
from .prefetch import prefetch

__all__ = [
    "Dataset",
    "DistributedOptimizer",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingCollection",
    "RemappedEmbedding",
    "RemappedEmbeddingBag",
    "convert",
    "export_onnx",
    "prefetch",
    "to_local",
]
