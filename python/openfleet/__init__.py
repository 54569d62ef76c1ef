"""OpenFleet trains recommendation and click models on ordinary CPU machines, from one script.

>>> import openfleet.static as static
>>> import openfleet.fleet as fleet

`openfleet.static` has programs, layers and the executor, `openfleet.dataset` what they train on, `openfleet.fleet` what
makes one script a job of servers and workers, `openfleet.models` the models people train.
"""

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

__all__ = [
    "CheckpointError",
    "DataError",
    "Error",
    "OrderError",
    "ProgramError",
    "RoleError",
    "ServerError",
    "__version__",
]
