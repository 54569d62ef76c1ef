"""OpenFleet trains recommendation and click models on ordinary CPU machines, from one script.

>>> import openfleet.static as static
>>> import openfleet.fleet as fleet

`openfleet.static` has programs, layers and the executor, `openfleet.dataset` what they train on, `openfleet.fleet` what
makes one script a job of servers and workers, `openfleet.models` the models people train.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._native import (
    CheckpointError,
    DataError,
    Error,
    OrderError,
    ProgramError,
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
    "RoleError",
    "ServerError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Not imported until somebody predicts: the commands need neither NumPy nor layers.
    if name == "Predictor":
        from .static import Predictor

        return Predictor
    raise AttributeError(f"module `openfleet` has no attribute `{name}`")
