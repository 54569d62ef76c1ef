"""Layers, activations, losses and metrics, with the original's argument names.

>>> from openfleet import static
>>> with static.program_guard(static.Program(), static.Program()):
...     user = static.data("user", [None, 1], "int64", lod_level=1)
...     x = static.nn.embedding(user, size=[1000, 8], is_sparse=True)
...     y = static.nn.fc(x, size=1, activation="sigmoid")
>>> y.shape
(-1, 1)
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from .entry import EntryAttr
from .param_attr import attr_json, with_defaults
from .program import Variable, _net, _net_of

_FUSED = ("relu", "sigmoid", "tanh")


def _variable(name: str) -> Variable:
    return Variable(_net().main, name)


def _dims(shape: Sequence[Any]) -> list[int]:
    return [-1 if size is None else size.size if isinstance(size, SizeVariable) else int(size) for size in shape]


def _axes(axis: int | Sequence[int] | None) -> list[int]:
    if axis is None:
        return []
    return [int(axis)] if isinstance(axis, (int, np.integer)) else [int(a) for a in axis]


def _dtype(dtype: Any) -> str:
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    return {"float": "float32", "int": "int64", "int32": "int64", "float64": "float32"}.get(name, name)


def data(name: str, shape: Sequence[int | None], dtype: Any = "float32", lod_level: int = 0) -> Variable:
    """A variable that each batch feeds. `None` or -1 is the batch; with `lod_level=1` a row has any number of ids."""
    net = _net_of()
    if lod_level > 1:
        raise NotImplementedError("`lod_level` above 1: a slot has one level of rows")
    if lod_level == 1 and _dtype(dtype) == "int64":
        return _variable(net.slot(name))
    if lod_level == 1:
        raise NotImplementedError(
            "a slot with any number of floats a row; feed floats of a fixed shape (`lod_level=0`)"
        )
    return _variable(net.data(name, _dims(shape), _dtype(dtype)))


def create_parameter(
    shape: Sequence[int],
    dtype: Any = "float32",
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Variable:
    """A parameter that no layer made."""
    if _dtype(dtype) != "float32":
        raise NotImplementedError(f"`dtype` `{dtype}` of a parameter: parameters are `float32`")
    attr = with_defaults(attr, name, default_initializer)
    return _variable(_net_of().create_parameter([int(size) for size in shape], attr_json(attr), is_bias))


# Layers with parameters.


def fc(
    x: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    weight_attr: Any = None,
    bias_attr: Any = None,
    activation: str | None = None,
    name: str | None = None,
) -> Variable:
    """A dense layer; of several inputs the products are added up. `bias_attr=False` leaves the bias out."""
    if isinstance(x, (list, tuple)):
        attrs = weight_attr if isinstance(weight_attr, (list, tuple)) else [weight_attr] * len(x)
        parts = [fc(one, size, num_flatten_dims, attr, False) for one, attr in zip(x[:-1], attrs)]
        parts.append(fc(x[-1], size, num_flatten_dims, attrs[-1], bias_attr, name=name))
        return _activated(add_n(parts), activation)
    if num_flatten_dims < 0:
        num_flatten_dims += x.ndim
    fused = activation if activation in _FUSED else "linear"
    bias = None if bias_attr is False else attr_json(bias_attr)
    net = _net_of(x)
    y = _variable(net.fc(x.name, int(size), fused, attr_json(weight_attr), bias, num_flatten_dims, name))
    return y if activation in _FUSED else _activated(y, activation)


def _activated(x: Variable, activation: str | None) -> Variable:
    if activation in (None, "linear"):
        return x
    functions = {"relu": relu, "sigmoid": sigmoid, "tanh": tanh, "softmax": softmax, "exp": exp, "sqrt": sqrt}
    functions.update({"square": square, "abs": abs, "log": log})
    if activation not in functions:
        from .. import _native

        raise ValueError(
            f"no activation is named `{activation}`\n\nhint: {_native.nearest(activation, list(functions))}"
        )
    return functions[activation](x)


class Selected(Variable):
    """What `masked_select` gives: no program knows how many elements that is, but what they add up to can be computed.

    It keeps all elements and the mask. Elementwise layers work on it; `sum` and `mean` are over what was selected.
    """

    def __init__(self, elements: Variable, mask: Variable) -> None:
        self.program, self._elements, self._mask = elements.program, elements, mask

    @property
    def name(self) -> str:  # type: ignore[override]
        raise NotImplementedError(
            "what `masked_select` gives has as many elements as its mask is true, which a program cannot know\n\n"
            "hint: take its `sum` or `mean`, or use `where` on the whole"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Any number."""
        return (-1,)

    @property
    def dtype(self) -> str:
        """That of the elements."""
        return self._elements.dtype

    def map(self, layer: Any) -> Selected:
        """The same selection of what an elementwise layer makes of all elements."""
        return Selected(layer(self._elements), self._mask)

    @staticmethod
    def combine(layer: Any, x: Any, y: Any) -> Selected:
        """Two selections by one mask, or a selection and a number."""
        mask = x._mask if isinstance(x, Selected) else y._mask
        for one in (x, y):
            selected = isinstance(one, Selected)
            if (selected and one._mask.name != mask.name) or (isinstance(one, Variable) and not selected):
                raise NotImplementedError("layers on `masked_select` of two masks: select both with the same one")
        parts = [one._elements if isinstance(one, Selected) else one for one in (x, y)]
        return Selected(layer(*parts), mask)

    def sum(self) -> Variable:
        """The sum of what was selected."""
        return sum(where(self._mask, self._elements, zeros_like(self._elements)))

    def mean(self) -> Variable:
        """The mean of what was selected; no number where nothing was."""
        return divide(self.sum(), sum(cast(self._mask, "float32")))


def masked_select(x: Variable, mask: Variable, name: str | None = None) -> Variable:
    """The elements of x where `mask`, of the same shape, is true: for elementwise layers, `sum` and `mean`."""
    if x.shape != mask.shape or mask.dtype != "bool":
        got = f"{list(mask.shape)} of {mask.dtype}"
        raise ValueError(f"`masked_select` expects a mask of {list(x.shape)} truth values, got {got}")
    return Selected(x, mask)


class JoinedIds(Variable):
    """Ids of several fields side by side, as `concat` joins them.

    A sparse table can only be looked up with what is fed, since its rows are pulled before a step begins. So a lookup
    of these looks each field up by itself and joins the rows, which is the same.
    """

    def __init__(self, program: Any, name: str, parts: Sequence[Variable], axis: int) -> None:
        super().__init__(program, name)
        self._parts, self._axis = list(parts), axis % parts[0].ndim

    def each(self, look_up: Any) -> Variable:
        """The rows of each field, joined as the ids were."""
        return concat([look_up(part) for part in self._parts], self._axis)


class SlotEmbedding(Variable):
    """The rows of a slot's ids, not pooled yet: summed up wherever it is used, unless `sequence_pool` comes first."""

    def __init__(self, slot: Variable, look_up: Any) -> None:
        self.program, self._slot, self._look_up, self._pooled = slot.program, slot, look_up, {}

    def pool(self, pooling: str) -> Variable:
        """One row of the batch, one vector."""
        if pooling not in self._pooled:
            self._pooled[pooling] = self._look_up(pooling)
        return self._pooled[pooling]

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.pool("sum").name


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
    pooling: str | None = None,
    name: str | None = None,
) -> Variable:
    """Looks ids up in a parameter of `size[0]` rows of `size[1]` floats.

    With `is_sparse` the rows are those of a sparse table, which keeps what was seen; without, a dense parameter. Ids of
    a fixed shape give that shape with `size[1]` after it; a slot gives one vector a row, by `pooling` (`sum`, `mean`,
    `sqrtn`) or by `sequence_pool`.
    """
    rows, dim = int(size[0]), int(size[1])
    _float_rows(dtype)
    if isinstance(input, JoinedIds) and (is_sparse or is_distributed):
        attr = with_defaults(param_attr, _net().native.unique_name("embedding.w"))
        return input.each(lambda ids: embedding(ids, size, True, False, padding_idx, attr, dtype, "each"))
    if is_sparse or is_distributed:
        return _sparse(input, dim, rows, padding_idx, param_attr, pooling)
    net = _net_of(input)

    def look_up(pooling: str) -> Variable:
        attr = attr_json(param_attr)
        return _variable(net.dense_embedding(input.name, [rows, dim], attr, pooling, padding_idx))

    return _pooled(input, look_up, pooling)


def sparse_embedding(
    input: Variable,
    size: Sequence[int],
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Any = None,
    table_class: str = "MemorySparseTable",
    param_attr: Any = None,
    dtype: Any = "float32",
    slot: Any = None,
    pooling: str | None = None,
) -> Variable:
    """Looks ids up in a sparse table without a bound: any 64-bit id, whatever `size[0]` says.

    `entry` says which ids get a row: `CountFilterEntry`, `ProbabilityEntry` or `ShowClickEntry`; all do without it.
    """
    _float_rows(dtype)
    if table_class not in ("MemorySparseTable", "CommonSparseTable"):
        raise NotImplementedError(f"`table_class` `{table_class}`: rows are kept in memory (`MemorySparseTable`)")
    if is_test:
        raise NotImplementedError("`is_test=True`: a program's copy `clone(for_test=True)` creates no rows")
    if entry is not None and not isinstance(entry, EntryAttr):
        raise TypeError(f"`entry` expects a rule of admission such as CountFilterEntry, got {type(entry).__name__}")
    if isinstance(input, JoinedIds):
        attr = with_defaults(param_attr, _net().native.unique_name("embedding.w"))
        return input.each(
            lambda ids: sparse_embedding(ids, size, padding_idx, is_test, entry, table_class, attr, dtype, slot, "each")
        )
    rows = None if entry is None else json.dumps(entry.to_json())
    return _sparse(input, int(size[1]), None, padding_idx, param_attr, pooling, rows)


def _float_rows(dtype: Any) -> None:
    if _dtype(dtype) != "float32":
        raise NotImplementedError(f"`dtype` `{dtype}` of an embedding: rows are `float32`")


def _sparse(
    input: Variable,
    dim: int,
    vocabulary: int | None,
    padding_idx: int | None,
    param_attr: Any,
    pooling: str | None,
    rows: str | None = None,
) -> Variable:
    net, attr = _net_of(input), attr_json(param_attr)

    def look_up(pooling: str) -> Variable:
        return _variable(net.embedding(input.name, dim, attr, pooling, vocabulary, rows, padding_idx))

    return _pooled(input, look_up, pooling)


def _pooled(input: Variable, look_up: Any, pooling: str | None) -> Variable:
    if pooling is not None:
        return look_up(pooling)
    return SlotEmbedding(input, look_up) if input.lod_level else look_up("each")


def sequence_pool(input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0) -> Variable:
    """Makes one vector of the rows of a slot's ids: `sum`, `average` or `sqrt`."""
    poolings = {"sum": "sum", "average": "mean", "mean": "mean", "sqrt": "sqrtn", "sqrtn": "sqrtn"}
    pooling = poolings.get(pool_type.lower())
    if pad_value != 0.0:
        raise NotImplementedError(f"`pad_value={pad_value}` of `sequence_pool`: a row without ids gives zeros")
    if pooling is None:
        raise NotImplementedError(f"`pool_type` `{pool_type}`: there are `sum`, `average` and `sqrt`")
    if not isinstance(input, SlotEmbedding):
        raise TypeError("`sequence_pool` expects what `embedding` makes of a slot (`lod_level=1`)")
    return input.pool(pooling)


def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Variable:
    """Normalises every channel over the batch."""
    attrs = attr_json(param_attr), attr_json(bias_attr)
    last, fixed = data_layout == "NHWC", use_global_stats or is_test
    net = _net_of(input)
    names = moving_mean_name, moving_variance_name
    return _activated(_variable(net.batch_norm(input.name, momentum, epsilon, *attrs, last, *names, fixed)), act)


def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Normalises every row."""
    scaling, shifting = attr_json(param_attr) if scale else None, attr_json(bias_attr) if shift else None
    y = _net_of(input).layer_norm(input.name, begin_norm_axis, epsilon, scaling, shifting)
    return _activated(_variable(y), act)


def cross(x0: Variable, x: Variable, weight_attr: Any = None, bias_attr: Any = None) -> Variable:
    """A cross layer of DCN: `x0 (x . w) + b + x`."""
    return _variable(_net_of(x0, x).cross(x0.name, x.name, attr_json(weight_attr), attr_json(bias_attr)))


def fm(x: Variable, fields: int | None = None) -> Variable:
    """The sum of products of all pairs of fields, of `[B, F, D]`, or of `[B, F * D]` with `fields`."""
    net = _net_of(x)
    return _variable(net.unary("fm", x.name) if fields is None else net.fm_of(x.name, fields))


def skip_gram(
    contexts: Variable, targets: Variable, dim: int, most_contexts: int, param_attr: Any = None, output_attr: Any = None
) -> Variable:
    """The loss of telling each row's first target from its others, given each of its contexts."""
    attrs = attr_json(param_attr), attr_json(output_attr)
    return _variable(_net_of(contexts, targets).skip_gram(contexts.name, targets.name, dim, most_contexts, *attrs))


# Layers of one input.


def _unary(op: str, x: Variable) -> Variable:
    if isinstance(x, Selected):
        return x.mean() if op == "mean" else x.map(lambda elements: _unary(op, elements))
    return _variable(_net_of(x).unary(op, x.name))


def abs(x: Variable, name: str | None = None) -> Variable:
    """The absolute value."""
    return _unary("abs", x)


def assign(x: Variable, output: None = None) -> Variable:
    """A copy."""
    if output is not None:
        raise NotImplementedError("`output` of `assign`: use what it returns")
    return _unary("assign", x)


def exp(x: Variable, name: str | None = None) -> Variable:
    """e to the power of x."""
    return _unary("exp", x)


def log(x: Variable, name: str | None = None) -> Variable:
    """The natural logarithm."""
    return _unary("log", x)


def logical_not(x: Variable, name: str | None = None) -> Variable:
    """Not x."""
    return _unary("logical_not", x)


def relu(x: Variable, name: str | None = None) -> Variable:
    """max(x, 0)."""
    return _unary("relu", x)


def sigmoid(x: Variable, name: str | None = None) -> Variable:
    """1 / (1 + exp(-x))."""
    return _unary("sigmoid", x)


def sqrt(x: Variable, name: str | None = None) -> Variable:
    """The square root."""
    return _unary("sqrt", x)


def square(x: Variable, name: str | None = None) -> Variable:
    """x times x."""
    return _unary("square", x)


def tanh(x: Variable, name: str | None = None) -> Variable:
    """tanh(x)."""
    return _unary("tanh", x)


def cast(x: Variable, dtype: Any) -> Variable:
    """Integers to floats and back."""
    if isinstance(x, Selected):
        return x.map(lambda elements: cast(elements, dtype))
    if _dtype(dtype) == x.dtype:
        return x
    return _variable(_net_of(x).cast(x.name, _dtype(dtype)))


def clip(x: Variable, min: float | None = None, max: float | None = None, name: str | None = None) -> Variable:
    """x within two bounds."""
    if isinstance(x, Selected):
        return x.map(lambda elements: clip(elements, min, max))
    bounds = np.finfo(np.float32)
    low, high = bounds.min if min is None else min, bounds.max if max is None else max
    return _variable(_net_of(x).clip(x.name, float(low), float(high)))


def dropout(
    x: Variable, p: float = 0.5, mode: str = "upscale_in_train", seed: int | None = None, name: str | None = None
) -> Variable:
    """Zeros at random, in training."""
    if mode not in ("upscale_in_train", "downscale_in_infer", "downgrade_in_infer"):
        raise ValueError(f"`mode` of dropout cannot be `{mode}`: `upscale_in_train` or `downscale_in_infer`")
    return _variable(_net_of(x).dropout(x.name, float(p), mode == "upscale_in_train", seed))


def expand(x: Variable, shape: Sequence[int], name: str | None = None) -> Variable:
    """Repeats dimensions of 1 up to a shape."""
    return _variable(_net_of(x).expand(x.name, _dims(shape)))


def flatten(x: Variable, start_axis: int = 1, stop_axis: int = -1, name: str | None = None) -> Variable:
    """Makes one dimension of several."""
    stop = stop_axis % x.ndim
    if start_axis < 1:
        raise NotImplementedError("`flatten` over the batch: use `reshape`")
    size = int(np.prod(x.shape[start_axis : stop + 1]))
    return reshape(x, [-1, *x.shape[1:start_axis], size, *x.shape[stop + 1 :]])


def l2_normalize(x: Variable, axis: int = -1, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """Vectors of length 1."""
    return _variable(_net_of(x).l2_normalize(x.name, axis, epsilon))


def one_hot(x: Variable, num_classes: int, allow_out_of_range: bool = False, name: str | None = None) -> Variable:
    """Integers as rows with a single 1."""
    return _variable(_net_of(x).one_hot(x.name, num_classes, allow_out_of_range))


def pow(x: Variable, factor: float = 1.0, name: str | None = None) -> Variable:
    """x to the power of a constant."""
    if isinstance(x, Selected):
        return x.map(lambda elements: pow(elements, factor))
    return _variable(_net_of(x).pow(x.name, float(factor)))


def reshape(x: Variable, shape: Sequence[int], name: str | None = None) -> Variable:
    """The same elements in another shape."""
    if isinstance(x, Selected) and list(shape) in ([-1], [-1, 1]):
        return x
    return _variable(_net_of(x).reshape(x.name, _dims(shape)))


def scale(
    x: Variable,
    scale: float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """`scale * x + bias`."""
    if isinstance(x, Selected):
        factor = scale
        return x.map(lambda elements: globals()["scale"](elements, factor, bias, bias_after_scale, act))
    y = _variable(_net_of(x).scale(x.name, float(scale), float(bias), bias_after_scale))
    return _activated(y, act)


def slice(input: Variable, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Variable:
    """A range of some dimensions."""
    return _variable(_net_of(input).slice(input.name, list(axes), list(starts), list(ends)))


def _getitem(x: Variable, index: Any) -> Variable:
    """Ranges and single positions, of dimensions after the batch."""
    parts = index if isinstance(index, tuple) else (index,)
    axes, starts, ends, gone = [], [], [], []
    for axis, part in enumerate(parts):
        if isinstance(part, int):
            axes.append(axis)
            starts.append(part)
            ends.append(part + 1 if part != -1 else np.iinfo(np.int32).max)
            gone.append(axis)
        elif isinstance(part, type(np.s_[:])) and part.step in (None, 1):
            if part.start is not None or part.stop is not None:
                axes.append(axis)
                starts.append(part.start or 0)
                ends.append(np.iinfo(np.int32).max if part.stop is None else part.stop)
        else:
            raise TypeError(f"a variable is indexed by integers and ranges, got {part!r}")
    y = slice(x, axes, starts, ends) if axes else x
    return squeeze(y, gone) if gone else y


def softmax(x: Variable, axis: int = -1, name: str | None = None) -> Variable:
    """exp(x) / sum exp(x) along an axis."""
    return _variable(_net_of(x).softmax(x.name, axis))


def split(x: Variable, num_or_sections: int | Sequence[int], axis: int = 0, name: str | None = None) -> list[Variable]:
    """Cuts into parts along an axis."""
    net = _net_of(x)
    if isinstance(num_or_sections, int):
        return [_variable(part) for part in net.split_evenly(x.name, num_or_sections, axis)]
    return [_variable(part) for part in net.split(x.name, list(num_or_sections), axis)]


def squeeze(x: Variable, axis: int | Sequence[int] | None = None, name: str | None = None) -> Variable:
    """Takes dimensions of 1 away."""
    return _variable(_net_of(x).squeeze(x.name, _axes(axis)))


def unsqueeze(x: Variable, axis: int | Sequence[int], name: str | None = None) -> Variable:
    """Inserts dimensions of 1."""
    return _variable(_net_of(x).unsqueeze(x.name, _axes(axis)))


def tile(x: Variable, repeat_times: Sequence[int], name: str | None = None) -> Variable:
    """Repeats along dimensions."""
    return _variable(_net_of(x).tile(x.name, list(repeat_times)))


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """Exchanges dimensions."""
    return _variable(_net_of(x).transpose(x.name, list(perm)))


def _reduced(op: str, x: Variable, axis: int | Sequence[int] | None, keepdim: bool) -> Variable:
    if isinstance(x, Selected) and op in ("sum", "mean") and axis in (None, 0, -1):
        return x.sum() if op == "sum" else x.mean()
    return _variable(_net_of(x).reduce(op, x.name, _axes(axis), keepdim))


def sum(x: Variable, axis: Any = None, dtype: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The sum over some axes, or over all."""
    if dtype is not None:
        x = cast(x, dtype)
    return _reduced("sum", x, axis, keepdim)


def mean(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The mean over some axes, or over all."""
    return _unary("mean", x) if axis is None and not keepdim else _reduced("mean", x, axis, keepdim)


def max(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The greatest element over some axes, or over all."""
    return _reduced("max", x, axis, keepdim)


# Constants.


def full(shape: Sequence[int], fill_value: float, dtype: Any = "float32", name: str | None = None) -> Variable:
    """One number everywhere; -1 is the batch."""
    return _variable(_net_of().fill_constant(_dims(shape), float(fill_value), _dtype(dtype) == "int64"))


def full_like(x: Variable, fill_value: float, dtype: Any = None, name: str | None = None) -> Variable:
    """One number in the shape of another variable."""
    integers = (x.dtype if dtype is None else _dtype(dtype)) == "int64"
    return _variable(_net_of(x).fill_like(x.name, float(fill_value), integers))


def literal(values: Any, dtype: Any = None) -> Variable:
    """Given numbers, which travel with the program.

    >>> from openfleet import static
    >>> with static.program_guard(static.Program(), static.Program()):
    ...     literal([[1, 2], [3, 4]]).dtype
    'int64'
    """
    array = np.asarray(values)
    kind = _dtype(array.dtype if dtype is None else dtype)
    net, dims, flat = _net_of(), list(array.shape) or [1], array.reshape(-1)
    if kind == "int64":
        return _variable(net.literal_integers(dims, flat.astype(np.int64).tolist()))
    if kind == "bool":
        return _variable(net.literal_truth(dims, flat.astype(bool).tolist()))
    if kind != "float32":
        raise NotImplementedError(f"`dtype` `{kind}`: there are `float32`, `int64` and `bool`")
    return _variable(net.literal(dims, flat.astype(np.float32).tolist()))


def uniform(shape: Sequence[int], min: float = -1.0, max: float = 1.0, seed: int | None = None) -> Variable:
    """Random floats in `[min, max)`, other ones in every step unless there is a seed."""
    return _random(shape, {"uniform": {"low": float(min), "high": float(max)}}, seed)


def normal(shape: Sequence[int], mean: float = 0.0, std: float = 1.0, seed: int | None = None) -> Variable:
    """Random floats of a normal distribution, other ones in every step unless there is a seed."""
    return _random(shape, {"normal": {"mean": float(mean), "std": float(std)}}, seed)


def _random(shape: Sequence[int], distribution: Any, seed: int | None) -> Variable:
    return _variable(_net_of().random(_dims(shape), json.dumps(distribution), seed))


class SizeVariable(Variable):
    """One size of `shape`, which can stand for itself among the sizes of a new shape."""

    size: int


class ShapeVariable(Variable):
    """What `shape` gives: `shape(x)[0]` can stand among the sizes of a new shape."""

    _of: Variable

    def __getitem__(self, index: Any) -> Variable:
        picked = _getitem(self, index)
        if not isinstance(index, int):
            return picked
        size = SizeVariable(picked.program, picked.name)
        rows = self._of.program._native.rows_in(self._of.name)[index]
        if rows > 1:
            raise NotImplementedError(f"`shape(...)[{index}]`: a dimension of {rows} times the batch")
        size.size = -1 if rows else self._of.shape[index]
        return size


def shape(input: Variable) -> Variable:
    """The sizes of a variable's dimensions in this step."""
    sizes = ShapeVariable(_net().main, _unary("shape", input).name)
    sizes._of = input
    return sizes


def topk(
    x: Variable, k: int, axis: int | None = None, largest: bool = True, sorted: bool = True, name: str | None = None
) -> tuple[Variable, Variable]:
    """The `k` greatest elements along an axis, or the least, in order; and their places."""
    axis = x.ndim - 1 if axis is None else axis % x.ndim
    if axis == x.ndim - 1:
        values, places = _net_of(x).topk(x.name, int(k), bool(largest))
        return _variable(values), _variable(places)
    perm = list(range(x.ndim))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    values, places = topk(transpose(x, perm), k, -1, largest)
    return transpose(values, perm), transpose(places, perm)


def tril(x: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """The lower triangle of the last two dimensions, zeros above."""
    return _triangle(np.tril, x, diagonal)


def triu(x: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """The upper triangle of the last two dimensions, zeros below."""
    return _triangle(np.triu, x, diagonal)


def _triangle(keep: Any, x: Variable, diagonal: int) -> Variable:
    sizes = x.shape[-2:]
    if len(sizes) < 2 or builtins.min(sizes) < 0:
        raise ValueError(f"a triangle needs two last dimensions of fixed sizes, got {list(x.shape)}")
    return where(literal(keep(np.ones(sizes, bool), diagonal)), x, zeros_like(x))


def sequence_mask(x: Variable, maxlen: int | None = None, dtype: Any = "int64", name: str | None = None) -> Variable:
    """Ones for the first `x[i]` of `maxlen` places, zeros after: `[..]` becomes `[.., maxlen]`."""
    if maxlen is None:
        raise NotImplementedError("`maxlen=None` of `sequence_mask`: say how long the longest sequence can be")
    return cast(less_than(literal(np.arange(int(maxlen))), unsqueeze(x, -1)), dtype)


def leaky_relu(x: Variable, negative_slope: float = 0.01, name: str | None = None) -> Variable:
    """x where it is above 0, `negative_slope` times x elsewhere."""
    return where(greater_than(x, 0.0), x, scale(x, negative_slope))


def prelu(x: Variable, weight: Variable, data_format: str = "NCHW", name: str | None = None) -> Variable:
    """x where it is above 0, elsewhere x times a weight: one for all, or one for each of the second dimension's."""
    if data_format not in ("NC", "NCL", "NCHW", "NCDHW"):
        raise NotImplementedError(f"`data_format` `{data_format}` of `prelu`: channels are the second dimension")
    if weight.shape != (1,) and x.ndim > 2:
        weight = reshape(weight, [weight.shape[0], *[1] * (x.ndim - 2)])
    return where(greater_than(x, 0.0), x, multiply(x, weight))


def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """The first two columns are shows and clicks: their logarithms instead, or without `use_cvm` nothing of them.

    As there, no gradient of the loss flows into the two columns; shows and clicks reach a table another way, so `cvm`
    itself has nothing to say here.
    """
    if input.ndim != 2 or input.shape[1] < 3:
        raise ValueError(f"`continuous_value_model` expects [N, D] with D above 2, got {list(input.shape)}")
    if not isinstance(cvm, Variable):
        raise TypeError(f"`cvm` expects a Variable, got {type(cvm).__name__}")
    rest = slice(input, [1], [2], [input.shape[1]])
    if not use_cvm:
        return rest
    counts = slice(input, [1], [0], [2])
    counts.stop_gradient = True
    logs = log(scale(counts, 1.0, 1.0))
    shows, clicks = split(logs, 2, 1)
    return concat([shows, subtract(clicks, shows), rest], 1)


def min(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The least element over some axes, or over all."""
    return scale(max(scale(x, -1.0), axis, keepdim), -1.0)


def zeros_like(x: Variable, dtype: Any = None, name: str | None = None) -> Variable:
    """Zeros in the shape of another variable."""
    return full_like(x, 0, dtype)


def ones_like(x: Variable, dtype: Any = None, name: str | None = None) -> Variable:
    """Ones in the shape of another variable."""
    return full_like(x, 1, dtype)


# Layers of several inputs. A plain number stands for a constant.


def _binary(op: str, x: Any, y: Any, axis: int = -1) -> Variable:
    if isinstance(x, Selected) or isinstance(y, Selected):
        return Selected.combine(lambda a, b: _binary(op, a, b), x, y)
    if not isinstance(x, Variable):
        x = _constant(x, y)
    if not isinstance(y, Variable):
        y = _constant(y, x)
    return _variable(_net_of(x, y).binary(op, x.name, y.name, axis))


def _constant(value: Any, beside: Any) -> Variable:
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"expected a Variable or a number, got {type(value).__name__}")
    if not isinstance(beside, Variable):
        raise TypeError(f"expected a Variable, got {type(beside).__name__}")
    return full_like(beside, value, "int64" if beside.dtype == "int64" else "float32")


def add(x: Any, y: Any, axis: int = -1, name: str | None = None) -> Variable:
    """x + y; the smaller is repeated along `axis` of the other."""
    return _binary("add", x, y, axis)


def subtract(x: Any, y: Any, axis: int = -1, name: str | None = None) -> Variable:
    """x - y."""
    return _binary("subtract", x, y, axis)


def multiply(x: Any, y: Any, axis: int = -1, name: str | None = None) -> Variable:
    """x * y."""
    return _binary("multiply", x, y, axis)


def divide(x: Any, y: Any, axis: int = -1, name: str | None = None) -> Variable:
    """x / y."""
    return _binary("divide", x, y, axis)


def maximum(x: Any, y: Any, axis: int = -1, name: str | None = None) -> Variable:
    """The larger of x and y."""
    return _binary("maximum", x, y, axis)


def minimum(x: Any, y: Any, axis: int = -1, name: str | None = None) -> Variable:
    """The smaller of x and y."""
    return _binary("minimum", x, y, axis)


def add_n(inputs: Sequence[Variable], name: str | None = None) -> Variable:
    """The sum of several variables."""
    total = inputs[0]
    for x in inputs[1:]:
        total = add(total, x)
    return total


def equal(x: Any, y: Any, name: str | None = None) -> Variable:
    """x == y."""
    return _binary("equal", x, y)


def not_equal(x: Any, y: Any, name: str | None = None) -> Variable:
    """x != y."""
    return _binary("not_equal", x, y)


def less_than(x: Any, y: Any, name: str | None = None) -> Variable:
    """x < y."""
    return _binary("less_than", x, y)


def less_equal(x: Any, y: Any, name: str | None = None) -> Variable:
    """x <= y."""
    return _binary("less_equal", x, y)


def greater_than(x: Any, y: Any, name: str | None = None) -> Variable:
    """x > y."""
    return _binary("greater_than", x, y)


def greater_equal(x: Any, y: Any, name: str | None = None) -> Variable:
    """x >= y."""
    return _binary("greater_equal", x, y)


def logical_and(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """x and y."""
    return _binary("logical_and", x, y)


def logical_or(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """x or y."""
    return _binary("logical_or", x, y)


def where(condition: Variable, x: Any, y: Any, name: str | None = None) -> Variable:
    """Elements of x or y, as a condition says."""
    x = x if isinstance(x, Variable) else _constant(x, y)
    y = y if isinstance(y, Variable) else _constant(y, x)
    return _variable(_net_of(condition, x, y).select(condition.name, x.name, y.name))


def bmm(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """A matrix product for each row of the batch."""
    return _binary("bmm", x, y)


def gather(x: Variable, index: Variable, axis: int = 0, name: str | None = None) -> Variable:
    """Rows picked by number."""
    axis = int(axis) % x.ndim
    if axis == 0:
        return _binary("gather", x, index)
    perm = list(range(x.ndim))
    perm[0], perm[axis] = axis, 0
    return transpose(_binary("gather", transpose(x, perm), index), perm)


def matmul(
    x: Variable, y: Variable, transpose_x: bool = False, transpose_y: bool = False, name: str | None = None
) -> Variable:
    """A matrix product, or a batch of them."""
    return _variable(_net_of(x, y).matmul(x.name, y.name, transpose_x, transpose_y, 1.0))


def concat(x: Sequence[Variable], axis: int = 0, name: str | None = None) -> Variable:
    """Joins along an axis."""
    joined = _variable(_net_of(*x).concat([one.name for one in x], axis))
    if joined.dtype == "int64" and all(one.kind == "data" for one in x):
        return JoinedIds(joined.program, joined.name, x, axis)
    return joined


def stack(x: Sequence[Variable], axis: int = 0, name: str | None = None) -> Variable:
    """Joins along a new axis."""
    return _variable(_net_of(*x).stack([one.name for one in x], axis))


# Losses: one number a row, unless it says otherwise.


def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None) -> Variable:
    """Binary cross entropy of probabilities with float labels."""
    if isinstance(input, Selected) or isinstance(label, Selected):
        return Selected.combine(lambda a, b: log_loss(a, b, epsilon), input, label)
    return _variable(_net_of(input, label).log_loss(input.name, label.name, epsilon))


def binary_cross_entropy(input: Variable, label: Variable, reduction: str = "mean") -> Variable:
    """Binary cross entropy of probabilities, with clamped logarithms."""
    return _summed(_binary("binary_cross_entropy", input, label), reduction)


def sigmoid_cross_entropy_with_logits(x: Variable, label: Variable, name: str | None = None) -> Variable:
    """Binary cross entropy of logits with float labels."""
    return _binary("sigmoid_cross_entropy_with_logits", x, label)


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """The squared difference."""
    return _binary("square_error_cost", input, label)


def cross_entropy(input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100) -> Variable:
    """Cross entropy of probabilities over classes."""
    return _variable(_net_of(input, label).cross_entropy(input.name, label.name, soft_label, ignore_index))


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    return_softmax: bool = False,
) -> Any:
    """Cross entropy of logits over classes."""
    net = _net_of(logits, label)
    loss, probabilities = net.softmax_with_cross_entropy(logits.name, label.name, soft_label, ignore_index)
    return (_variable(loss), _variable(probabilities)) if return_softmax else _variable(loss)


def _summed(losses: Variable, reduction: str) -> Variable:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"`reduction` cannot be `{reduction}`: `mean`, `sum` or `none`")
    return {"mean": mean, "sum": sum, "none": lambda x: x}[reduction](losses)


# Metrics.


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 4095,
    topk: int = 1,
    slide_steps: int = 1,
    ins_tag_weight: Any = None,
) -> tuple[Variable, Variable, list[Variable]]:
    """The area under the curve over all batches, over the last `slide_steps`, and the four counters."""
    if curve != "ROC" or ins_tag_weight is not None or topk != 1:
        raise NotImplementedError("`auc` has the curve `ROC`, `topk` 1 and no weights")
    names = _net_of(input, label).auc(input.name, label.name, num_thresholds, slide_steps)
    return _auc_variables(names)


def _auc_variables(names: tuple[str, str, list[str]]) -> tuple[Variable, Variable, list[Variable]]:
    auc, batch_auc, counters = names
    return _variable(auc), _variable(batch_auc), [_variable(counter) for counter in counters]


def accuracy(input: Variable, label: Variable, k: int = 1, correct: Any = None, total: Any = None) -> Variable:
    """The share of rows whose label is among the `k` classes of the highest scores."""
    if correct is not None or total is not None:
        raise NotImplementedError("`correct` and `total` of `accuracy`: it gives the share only")
    return _variable(_net_of(input, label).accuracy(input.name, label.name, k)[0])
