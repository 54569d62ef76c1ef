"""`fluid.io`: checkpoints and readers."""

from openfleet import compat
from openfleet.reader import batch, shuffle
from openfleet.static.io import (
    load,
    load_params,
    load_persistables,
    load_program_state,
    load_vars,
    save,
    save_params,
    save_persistables,
    save_vars,
    set_program_state,
)

__all__ = [
    "batch",
    "load",
    "load_params",
    "load_persistables",
    "load_program_state",
    "load_vars",
    "save",
    "save_params",
    "save_persistables",
    "save_vars",
    "set_program_state",
    "shuffle",
]
__getattr__ = compat.absent(__name__, __all__)
