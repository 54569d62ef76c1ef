"""`paddle.fluid`, the names of the first version."""

from openfleet import compat
from openfleet.static import (
    CPUPlace,
    DataFeeder,
    Executor,
    LoDTensor,
    ParamAttr,
    Program,
    append_backward,
    clip,
    create_lod_tensor,
    data,
    default_main_program,
    default_startup_program,
    global_scope,
    gradients,
    program_guard,
    scope_guard,
    unique_name,
)

from . import framework, initializer, io, layers, optimizer, regularizer, transpiler
from .dataset import DatasetFactory
from .transpiler import DistributeTranspilerConfig

__all__ = [name for name in dir() if not name.startswith("_")]
__getattr__ = compat.absent(__name__, __all__)
