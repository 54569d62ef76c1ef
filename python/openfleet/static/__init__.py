"""Programs, layers, optimizers and the executor.

Declare data and layers, which are added to the default main program; run the startup program once; then run batches:

>>> import numpy as np
>>> from openfleet import static
>>> x = static.data("x", [None, 2])
>>> y = static.nn.fc(x, size=1, weight_attr=static.initializer.Constant(2.0))
>>> exe = static.Executor()
>>> _ = exe.run(static.default_startup_program())
>>> (value,) = exe.run(feed={"x": np.ones((3, 2))}, fetch_list=[y])
>>> value.tolist()
[[4.0], [4.0], [4.0]]
"""

from .. import _log
from . import clip, initializer, nn, optimizer, regularizer, unique_name
from .backward import append_backward, gradients
from .entry import CountFilterEntry, ProbabilityEntry, ShowClickEntry
from .executor import CPUPlace, Executor, FetchHandler
from .feed import DataFeeder, LoDTensor, create_lod_tensor
from .io import (
    load,
    load_inference_model,
    load_params,
    load_persistables,
    load_program_state,
    load_vars,
    save,
    save_inference_model,
    save_params,
    save_persistables,
    save_vars,
    set_program_state,
    write_onnx,
)
from .nn import accuracy, auc, create_global_var, create_parameter, data
from .param_attr import ParamAttr
from .predictor import Predictor
from .program import (
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
)
from .scope import Scope, global_scope, scope_guard

_log.begin()

__all__ = [
    "CPUPlace",
    "CountFilterEntry",
    "DataFeeder",
    "Executor",
    "FetchHandler",
    "LoDTensor",
    "ParamAttr",
    "Predictor",
    "ProbabilityEntry",
    "Program",
    "Scope",
    "ShowClickEntry",
    "Variable",
    "accuracy",
    "append_backward",
    "auc",
    "clip",
    "create_lod_tensor",
    "create_global_var",
    "create_parameter",
    "data",
    "default_main_program",
    "default_startup_program",
    "global_scope",
    "gradients",
    "initializer",
    "load",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_program_state",
    "load_vars",
    "nn",
    "optimizer",
    "program_guard",
    "regularizer",
    "save",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "scope_guard",
    "set_program_state",
    "unique_name",
    "write_onnx",
]
