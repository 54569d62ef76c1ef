"""`paddle.fluid`: the names of PaddlePaddle 1.x."""

from openfleet import compat
from openfleet.static import (
    CPUPlace,
    FetchHandler,
    LoDTensor,
    Program,
    Scope,
    append_backward,
    default_main_program,
    default_startup_program,
    global_scope,
    gradients,
    program_guard,
    scope_guard,
)

from .._devices import CUDAPinnedPlace, CUDAPlace, cuda_places
from .._executor import DataFeeder, Executor, create_lod_tensor
from .._layers import data, embedding
from .._parameters import ParamAttr
from . import (
    backward,
    clip,
    compiler,
    core,
    dygraph,
    executor,
    framework,
    initializer,
    io,
    layers,
    metrics,
    optimizer,
    param_attr,
    profiler,
    regularizer,
    transpiler,
    unique_name,
)
from .compiler import BuildStrategy, CompiledProgram, ExecutionStrategy
from .dataset import DatasetFactory
from .framework import cpu_places, device_guard, in_dygraph_mode, is_compiled_with_cuda, name_scope
from .input import one_hot
from .io import PyReader, load, load_program_state, save, set_program_state
from .transpiler import DistributeTranspilerConfig

__all__ = [name for name in dir() if not name.startswith("_") and name != "compat"]
__getattr__ = compat.absent(__name__, __all__)
