"""`paddle.jit`: programs are static already."""

from __future__ import annotations

from typing import Any

from openfleet import compat

from . import _dynamic
from .nn.layer import Layer


def to_static(function: Any = None, input_spec: Any = None, *_: Any, **__: Any) -> Any:
    """Returns a function as it is: it adds its ops to a static program. Raises NotImplementedError for a layer."""
    if isinstance(function, Layer):
        _dynamic.refuse("paddle.jit.to_static(layer)", _dynamic.FEED)
    return to_static if function is None else function


def not_to_static(func: Any = None) -> Any:
    """Returns a function as it is."""
    return not_to_static if func is None else func


save = _dynamic.refusing_function("paddle.jit.save()", _dynamic.SAVE)
load = _dynamic.refusing_function(
    "paddle.jit.load()", "`paddle.static.load_inference_model(path, exe)` returns the program, its inputs and outputs"
)
__all__ = ["load", "not_to_static", "save", "to_static"]
__getattr__ = compat.absent(__name__, __all__)
