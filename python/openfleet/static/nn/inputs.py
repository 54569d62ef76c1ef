"""Variables that no layer computes: the data of a batch, and parameters declared by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..param_attr import attr_json, with_defaults
from ..program import Variable
from ._ops import dtype_name, net_of, unique_name, variable


def data(name: str, shape: Sequence[int | None], dtype: Any = "float32", lod_level: int = 0) -> Variable:
    """Declares a variable that every batch feeds.

    Args:
        name: The name by which `Executor.run(feed=...)` and datasets find it.
        shape: `[None, ...]`: the first size is the batch size B, written as `None` or -1.
        dtype: `float32`, `int64` or `bool`.
        lod_level: 0 for rows of a fixed shape. 1 for a slot: each row has any number of `int64` ids.

    Returns:
        The variable, of shape [B, ...].

    Raises:
        NotImplementedError: `lod_level` is above 1, or 1 for floats.

    >>> age = static.data("age", [None, 1])
    >>> clicks = static.data("clicks", [None, 1], "int64", lod_level=1)
    >>> age.shape, clicks.dtype, clicks.lod_level
    ((-1, 1), 'int64', 1)
    """
    net = net_of()
    if lod_level > 1:
        raise NotImplementedError("`lod_level` above 1: a slot has one level of rows")
    if lod_level == 1 and dtype_name(dtype) == "int64":
        return variable(net.slot(name))
    if lod_level == 1:
        raise NotImplementedError(
            "a slot with any number of floats per row; feed floats of a fixed shape (`lod_level=0`)"
        )
    sizes = [-1 if size is None else int(size) for size in shape]
    return variable(net.data(name, sizes, dtype_name(dtype)))


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """Declares a value in the scope that a program reads, and sets with `assign(x, output)`. It keeps it between steps.

    Args:
        shape: Its sizes, all of them fixed.
        value: The number that every element has at first, after the startup program.
        dtype: `float32` or `int64`.
        persistable: No effect: the value is always kept.
        force_cpu: No effect.
        name: Its name; a unique one by default.

    >>> count = static.create_global_var([1], 0.0, "float32", name="count")
    >>> _ = static.nn.assign(count + 1.0, count)
    >>> _ = exe.run(static.default_startup_program())
    >>> for _ in range(3):
    ...     counted = exe.run(fetch_list=[count])
    >>> counted[0].tolist()
    [3.0]
    """
    kind = dtype_name(dtype)
    if kind not in ("float32", "int64"):
        raise NotImplementedError(f"`dtype` `{dtype}` of a global variable: there are `float32` and `int64`")
    name = unique_name("global_var") if name is None else name
    sizes = [int(size) for size in shape]
    return variable(net_of().global_variable(name, sizes, float(value), kind == "int64"))


def create_parameter(
    shape: Sequence[int],
    dtype: Any = "float32",
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Variable:
    """Declares a dense parameter, for layers that are written by hand.

    Args:
        shape: Its sizes, all of them fixed.
        dtype: `float32`.
        name: Its name; a unique one by default.
        attr: A `ParamAttr`, a name, an initializer or a regularizer. Its name and initializer win over the arguments.
        is_bias: Whether the default initializer is that of a bias (zeros) instead of a weight.
        default_initializer: First values where `attr` has no initializer.

    Raises:
        NotImplementedError: `dtype` is not `float32`.

    >>> weight = static.create_parameter([2, 3], name="weight", default_initializer=static.initializer.Constant(0.5))
    >>> _ = exe.run(static.default_startup_program())
    >>> exe.run(fetch_list=[static.nn.sum(weight)])[0].tolist()
    [3.0]
    """
    if dtype_name(dtype) != "float32":
        raise NotImplementedError(f"`dtype` `{dtype}` of a parameter: parameters are `float32`")
    attr = with_defaults(attr, name, default_initializer)
    return variable(net_of().create_parameter([int(size) for size in shape], attr_json(attr), is_bias))
