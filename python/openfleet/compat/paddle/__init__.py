"""`paddle` as scripts know it, in static mode."""

from __future__ import annotations

import sys

import openfleet.static as static
import openfleet.static.optimizer as optimizer
import openfleet.static.regularizer as regularizer
from openfleet import compat
from openfleet.reader import batch
from openfleet.static import CPUPlace, ParamAttr, create_parameter
from openfleet.static.nn import (
    abs,
    add,
    add_n,
    assign,
    bmm,
    cast,
    clip,
    concat,
    divide,
    equal,
    exp,
    expand,
    flatten,
    full,
    full_like,
    gather,
    greater_equal,
    greater_than,
    less_equal,
    less_than,
    log,
    logical_and,
    logical_not,
    logical_or,
    matmul,
    max,
    maximum,
    mean,
    minimum,
    multiply,
    not_equal,
    ones_like,
    pow,
    reshape,
    scale,
    slice,
    split,
    sqrt,
    square,
    squeeze,
    stack,
    subtract,
    sum,
    tanh,
    tile,
    transpose,
    unsqueeze,
    where,
    zeros_like,
)

from . import distributed, fluid

# The same modules under the names of the original.
for _name, _module in (("static", static), ("optimizer", optimizer), ("regularizer", regularizer)):
    sys.modules[f"{__name__}.{_name}"] = _module
sys.modules[f"{__name__}.static.nn"] = static.nn
sys.modules[f"{__name__}.optimizer.lr"] = optimizer.lr


def enable_static() -> None:
    """Nothing: programs are always static here."""


def disable_static(place: object = None) -> None:
    """There is no dynamic mode."""
    raise NotImplementedError("`paddle.disable_static`: programs are static here")


def in_dynamic_mode() -> bool:
    """Never."""
    return False


def seed(seed: int) -> None:
    """The default programs draw their random numbers from this seed."""
    static.default_main_program().random_seed = seed
    static.default_startup_program().random_seed = seed


def set_device(device: str) -> CPUPlace:
    """The only device there is."""
    if device != "cpu":
        raise NotImplementedError(f"`paddle.set_device({device!r})`: there is `cpu`")
    return CPUPlace()


def is_compiled_with_cuda() -> bool:
    """Never."""
    return False


__all__ = [name for name in dir() if not name.startswith("_")]
__getattr__ = compat.absent(__name__, __all__)
