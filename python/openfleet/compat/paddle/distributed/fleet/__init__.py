"""`paddle.distributed.fleet`: `openfleet.fleet` itself, and the import paths that scripts know."""

from __future__ import annotations

from typing import Any

import openfleet.fleet as _fleet
from openfleet import compat as _compat
from openfleet.dataset import InMemoryDataset, QueueDataset
from openfleet.fleet import *  # noqa: F403
from openfleet.fleet import __all__ as _names

from . import base, data_generator
from .saving import load_model, save, save_inference_model, save_one_table, save_persistables  # numbers as modes

__all__ = [*_names, "InMemoryDataset", "QueueDataset", "base", "data_generator"]
_missing = _compat.absent(__name__, __all__)


def __getattr__(name: str) -> Any:
    # The programs are there once `minimize` was called, so they are asked for each time.
    if name in ("main_program", "startup_program"):
        return getattr(_fleet, name)
    return _missing(name)
