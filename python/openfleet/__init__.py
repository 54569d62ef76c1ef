"""OpenFleet trains recommendation and click models on CPU machines, from one script.

>>> import openfleet.static as static
>>> import openfleet.fleet as fleet

- `openfleet.static`: programs, layers, optimizers, the executor, saving and loading.
- `openfleet.dataset`: the data to train on.
- `openfleet.fleet`: runs one script as a job of servers and workers.
- `openfleet.models`: models of click prediction, and word2vec.
- `openfleet.ray`: runs a job on a Ray cluster.
- `openfleet.compat`: runs scripts that were written for PaddlePaddle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._native import (
    CheckpointError,
    DataError,
    Error,
    OrderError,
    ProgramError,
    RankError,
    RoleError,
    ServerError,
    __version__,
)

if TYPE_CHECKING:
    from .static import Predictor

__all__ = [
    "CheckpointError",
    "DataError",
    "Error",
    "OrderError",
    "Predictor",
    "ProgramError",
    "RankError",
    "RoleError",
    "ServerError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: the commands need neither NumPy nor layers.
    if name == "Predictor":
        from .static import Predictor

        return Predictor
    raise AttributeError(f"module `openfleet` has no attribute `{name}`")
