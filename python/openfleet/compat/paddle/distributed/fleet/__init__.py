"""`paddle.distributed.fleet`: `openfleet.fleet` with PaddlePaddle's arguments and import paths."""

from __future__ import annotations

import os as _os
from typing import Any

import openfleet.fleet as _fleet
from openfleet import compat as _compat
from openfleet.compat._arguments import with_arguments as _with_arguments
from openfleet.compat._notices import say_once as _say_once
from openfleet.compat.paddle._datasets import InMemoryDataset, QueueDataset
from openfleet.compat.paddle._dynamic import distributed_model
from openfleet.fleet import *  # noqa: F403
from openfleet.fleet import __all__ as _names

del metrics, util  # noqa: F821  # those of `openfleet.fleet`: modules of this package have their names

from . import base, data_generator, metrics, util, utils  # noqa: E402
from .base.distributed_strategy import DistributedStrategy  # noqa: E402  # with PaddlePaddle's further settings

# Modes of saving are numbers.
from .saving import load_model, save, save_inference_model, save_one_table, save_persistables  # noqa: E402

__all__ = [*_names, "InMemoryDataset", "QueueDataset", "base", "data_generator", "utils"]
_init = _with_arguments(_fleet.init, log_level="INFO")


def init(*args: Any, **kwargs: Any) -> Any:
    """Finds the role of this process. `CPU_NUM=None`, which PaddleRec's trainers set, is one training thread."""
    if _os.environ.get("CPU_NUM") == "None":
        _say_once("`CPU_NUM` is `None`: a worker has one training thread")
        del _os.environ["CPU_NUM"]
    return _init(*args, **kwargs)


init_worker = _with_arguments(_fleet.init_worker, scopes=None)


def init_server(*args: Any, **kwargs: Any) -> None:
    """Prepares a server. The first argument is a checkpoint to start from; the others have no effect."""
    _fleet.init_server(*args[:1] or (kwargs.get("dirname"),))


_missing = _compat.absent(__name__, __all__)


def __getattr__(name: str) -> Any:
    # Read each time, because `minimize` sets the programs.
    if name in ("main_program", "startup_program"):
        return getattr(_fleet, name)
    return _missing(name)
