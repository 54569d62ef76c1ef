"""`paddle.fluid`, the names of the first version."""

from openfleet import compat
from openfleet.static import (
    CPUPlace,
    DataFeeder,
    Executor,
    FetchHandler,
    LoDTensor,
    ParamAttr,
    Program,
    Scope,
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
from openfleet.static.nn import embedding

from . import (
    backward,
    core,
    executor,
    framework,
    initializer,
    io,
    layers,
    optimizer,
    param_attr,
    regularizer,
    transpiler,
)
from .dataset import DatasetFactory
from .framework import cpu_places, in_dygraph_mode, is_compiled_with_cuda, name_scope
from .input import one_hot
from .transpiler import DistributeTranspilerConfig

__all__ = [name for name in dir() if not name.startswith("_") and name != "compat"]
__getattr__ = compat.absent(__name__, __all__)
