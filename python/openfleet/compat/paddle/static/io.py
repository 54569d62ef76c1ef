"""`paddle.static.io`: saving and loading."""

from openfleet import compat
from openfleet.static import (
    load,
    load_inference_model,
    load_program_state,
    save,
    save_inference_model,
    set_program_state,
)

from ..fluid.io import is_parameter, is_persistable, load_vars, save_vars

__all__ = [
    "is_parameter",
    "is_persistable",
    "load",
    "load_inference_model",
    "load_program_state",
    "load_vars",
    "save",
    "save_inference_model",
    "save_vars",
    "set_program_state",
]
__getattr__ = compat.absent(__name__, __all__)
