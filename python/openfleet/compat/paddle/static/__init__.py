"""`paddle.static`: programs and the executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openfleet import compat
from openfleet.static import (
    CPUPlace,
    Program,
    Scope,
    Variable,
    append_backward,
    create_parameter,
    default_main_program,
    default_startup_program,
    global_scope,
    gradients,
    load,
    load_inference_model,
    load_program_state,
    program_guard,
    save,
    save_inference_model,
    scope_guard,
    set_program_state,
)
from openfleet.static.nn._ops import dtype_name as _dtype_name

from .._executor import Executor
from .._layers import accuracy, auc, create_global_var, data
from ..fluid.compiler import BuildStrategy, CompiledProgram, ExecutionStrategy
from ..fluid.framework import Print, cpu_places, cuda_places, device_guard, name_scope
from ..fluid.layers import exponential_decay
from . import io, nn
from .io import load_vars, save_vars


class InputSpec:
    """The shape, dtype and name of an input."""

    def __init__(
        self, shape: Sequence[int | None], dtype: Any = "float32", name: str | None = None, stop_gradient: bool = False
    ) -> None:
        self.shape = tuple(-1 if size is None else int(size) for size in shape)
        self.dtype, self.name, self.stop_gradient = _dtype_name(dtype), name, stop_gradient

    @classmethod
    def from_tensor(cls, tensor: Variable, name: str | None = None) -> InputSpec:
        """Returns the specification of a variable."""
        return cls(tensor.shape, tensor.dtype, name or tensor.name)

    def __repr__(self) -> str:
        return (
            f"InputSpec(shape={self.shape}, dtype={self.dtype}, name={self.name}, stop_gradient={self.stop_gradient})"
        )


__all__ = [name for name in dir() if not name.startswith("_")]
__all__ = [name for name in __all__ if name not in ("Any", "Sequence", "annotations", "compat")]
__getattr__ = compat.absent(__name__, __all__)
