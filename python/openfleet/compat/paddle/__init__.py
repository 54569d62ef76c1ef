"""`paddle` in static mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from openfleet import compat
from openfleet.fleet import _job
from openfleet.reader import batch
from openfleet.static import CPUPlace, Variable, create_parameter
from openfleet.static import default_main_program as _main
from openfleet.static import default_startup_program as _startup
from openfleet.static.nn._ops import dtype_name as _dtype_name

from . import (
    base,
    common_ops_import,
    core,
    device,
    distributed,
    fluid,
    framework,
    incubate,
    io,
    jit,
    metric,
    nn,
    optimizer,
    reader,
    regularizer,
    static,
    tensor,
    utils,
)
from ._devices import CUDAPinnedPlace, CUDAPlace, CustomPlace, XPUPlace, is_compiled_with_custom_device
from ._devices import say_cpu as _say_cpu
from ._dynamic import DataParallel, Model, grad, load, save, set_grad_enabled
from ._dynamic import refuse as _refuse
from ._methods import install as _install_methods
from ._parameters import ParamAttr
from .tensor import *  # noqa: F403

_job.paddle_lines = True
_install_methods()

__version__ = "2.6.0+openfleet"
__git_commit__ = "unknown"
bool, float32, int64 = "bool", "float32", "int64"
float64, int32, int16, int8, uint8, float16, bfloat16 = (
    "float64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "float16",
    "bfloat16",
)  # names only: elements are `float32` and `int64` here
Tensor = Variable


def enable_static() -> None:
    """Does nothing: programs are always static here."""


def disable_static(place: object = None) -> None:
    """Raises NotImplementedError: there is no dynamic mode."""
    _refuse("paddle.disable_static()", "leave it out, and call `paddle.enable_static()`")


def in_dynamic_mode() -> bool:  # type: ignore[valid-type]
    """Returns False."""
    return False


def get_default_dtype() -> str:
    """`float32` is the only dtype of parameters."""
    return "float32"


def set_default_dtype(d: Any) -> None:
    """`float32` is the only dtype of parameters."""
    if _dtype_name(d) != "float32" or "64" in str(d):
        raise NotImplementedError(f"`paddle.set_default_dtype({d!r})`: parameters are `float32`")


def seed(seed: int) -> None:
    """Sets the seed of the default programs."""
    _main().random_seed = seed
    _startup().random_seed = seed


def set_device(device: str) -> CPUPlace:
    """The CPU is the only device: a script that asks for a GPU trains on the CPU."""
    if device != "cpu":
        _say_cpu(f"the script asks for `set_device({device!r})`")
    return CPUPlace()


def get_device() -> str:
    """The CPU is the only device."""
    return "cpu"


def is_compiled_with_cuda() -> bool:  # type: ignore[valid-type]
    """Returns False."""
    return False


def is_compiled_with_distribute() -> bool:  # type: ignore[valid-type]
    """Returns True."""
    return True


is_compiled_with_xpu = is_compiled_with_npu = is_compiled_with_rocm = is_compiled_with_cinn = is_compiled_with_cuda
is_compiled_with_ipu = is_compiled_with_mkldnn = is_compiled_with_cuda


class _NoGrad:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))


def no_grad(func: Callable[..., Any] | None = None) -> Any:
    """Has no effect, as a decorator or in a `with` statement: a static program trains only after `minimize`."""
    return _NoGrad() if func is None else _NoGrad()(func)


__all__ = [name for name in dir() if not name.startswith("_")]
__all__ = [name for name in __all__ if name not in ("Any", "Callable", "annotations", "compat", "functools")]
__getattr__ = compat.absent(__name__, __all__)
