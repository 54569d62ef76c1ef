"""`fluid.layers`, with its own argument names and shapes."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from openfleet import compat
from openfleet.static import lr as _lr
from openfleet.static import nn as _nn
from openfleet.static import unique_name as _unique_name
from openfleet.static.nn._ops import activated as _activated
from openfleet.static.program import Variable

from ... import _layers
from ... import tensor as _tensor
from ..._layers import (
    abs,
    auc,
    batch_norm,
    cast,
    clip,
    continuous_value_model,
    create_global_var,
    create_parameter,
    cross_entropy,
    equal,
    exp,
    fm,
    greater_equal,
    greater_than,
    layer_norm,
    less_equal,
    less_than,
    log,
    log_loss,
    logical_and,
    logical_not,
    logical_or,
    not_equal,
    ones_like,
    pow,
    relu,
    scale,
    sequence_conv,
    sequence_expand,
    sequence_expand_as,
    sequence_first_step,
    sequence_last_step,
    sequence_mask,
    sequence_pad,
    sequence_pool,
    sequence_reverse,
    sequence_softmax,
    sequence_unpad,
    shape,
    sigmoid,
    slice,
    sqrt,
    square,
    square_error_cost,
    tanh,
    transpose,
    zeros_like,
)
from ..._layers import accuracy as accuracy
from ...io import PyReader
from ...nn import functional as _functional
from ...optimizer import lr as _paddle_lr
from ...tensor import ceil, cos, erf, floor, gather_nd, reciprocal, round, rsqrt, sign, sin
from ..framework import Print


def data(
    name: str,
    shape: Sequence[int],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: Any = None,
    stop_gradient: bool = True,
) -> Variable:
    """Declares a variable that every batch feeds. The batch size is added before the shape if it is missing."""
    if not stop_gradient:
        raise NotImplementedError("`stop_gradient=False` of `fluid.layers.data`: use `fluid.layers.create_parameter`")
    has_batch = not append_batch_size or builtins.any(size is None or size < 0 for size in shape)
    return _layers.data(name, list(shape) if has_batch else [-1, *shape], dtype, lod_level)


def fc(
    input: Any,
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """A dense layer."""
    return _nn.fc(input, size, num_flatten_dims, param_attr, bias_attr, act, name)


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Looks up ids. The vector replaces a last dimension of size 1 of the ids."""
    rows = _layers.embedding(input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype)
    return _layers.vectors_for_ids(rows, input)


def concat(input: Sequence[Variable], axis: int = 0, name: str | None = None) -> Variable:
    """Joins along an axis."""
    return _nn.concat(input, axis)


def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool | None = None,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Sets elements to zero at random in training."""
    if is_test:
        return x if dropout_implementation == "upscale_in_train" else _nn.scale(x, 1.0 - dropout_prob)
    return _nn.dropout(x, dropout_prob, dropout_implementation, seed)


def _elementwise(function: Any) -> Any:
    def layer(x: Variable, y: Any, axis: int = -1, act: str | None = None, name: str | None = None) -> Variable:
        return _activated(function(x, y, axis), act)

    layer.__doc__ = function.__doc__
    return layer


elementwise_add = _elementwise(_nn.add)
elementwise_sub = _elementwise(_nn.subtract)
elementwise_mul = _elementwise(_nn.multiply)
elementwise_div = _elementwise(_nn.divide)
elementwise_max = _elementwise(_nn.maximum)
elementwise_min = _elementwise(_nn.minimum)


def fill_constant(shape: Sequence[int], dtype: Any, value: float, force_cpu: bool = False, out: Any = None) -> Variable:
    """One number everywhere."""
    if out is not None:
        raise NotImplementedError("`out` of `fluid.layers.fill_constant`: use what it returns")
    return _nn.full(shape, value, dtype)


def l2_normalize(x: Variable, axis: int, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """Vectors of length 1."""
    return _nn.l2_normalize(x, axis, epsilon)


def mean(x: Variable, name: str | None = None) -> Variable:
    """The mean of all elements."""
    return _nn.mean(x)


def one_hot(input: Variable, depth: int, allow_out_of_range: bool = False) -> Variable:
    """Turns integers into rows with a single 1. The row replaces a last dimension of size 1."""
    rows = _nn.one_hot(input, depth, allow_out_of_range)
    return _nn.squeeze(rows, [input.ndim - 1]) if input.shape[-1] == 1 else rows


def reduce_sum(input: Variable, dim: Any = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """The sum over some axes."""
    return _nn.sum(input, dim, keepdim=keep_dim)


def reduce_mean(input: Variable, dim: Any = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """The mean over some axes."""
    return _nn.mean(input, dim, keep_dim)


def reduce_max(input: Variable, dim: Any = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """The greatest element over some axes."""
    return _nn.max(input, dim, keep_dim)


def softmax(input: Variable, use_cudnn: bool = False, name: str | None = None, axis: int = -1) -> Variable:
    """exp(x) / sum exp(x) along an axis."""
    return _nn.softmax(input, axis)


def split(input: Variable, num_or_sections: Any, dim: int = -1, name: str | None = None) -> list[Variable]:
    """Splits along an axis."""
    return _nn.split(input, num_or_sections, dim)


def squeeze(input: Variable, axes: Sequence[int], name: str | None = None) -> Variable:
    """Removes dimensions of size 1."""
    return _nn.squeeze(input, axes)


def unsqueeze(input: Variable, axes: Any, name: str | None = None) -> Variable:
    """Inserts dimensions of 1."""
    return _nn.unsqueeze(input, axes)


def stack(x: Sequence[Variable], axis: int = 0) -> Variable:
    """Joins along a new axis."""
    return _nn.stack(x, axis)


def reduce_min(input: Variable, dim: Any = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """The least element over some axes."""
    return _nn.min(input, dim, keep_dim)


def topk(input: Variable, k: int, name: str | None = None) -> tuple[Variable, Variable]:
    """Returns the k largest elements along the last axis, and their positions."""
    return _nn.topk(input, k)


def leaky_relu(x: Variable, alpha: float = 0.02, name: str | None = None) -> Variable:
    """Returns x above 0, and `alpha * x` below."""
    return _nn.leaky_relu(x, alpha)


def zeros(shape: Sequence[int], dtype: Any, force_cpu: bool = False, name: str | None = None) -> Variable:
    """Zeros."""
    return _nn.full(shape, 0.0, dtype)


def ones(shape: Sequence[int], dtype: Any, force_cpu: bool = False) -> Variable:
    """Ones."""
    return _nn.full(shape, 1.0, dtype)


def mul(
    x: Variable, y: Variable, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: str | None = None
) -> Variable:
    """A matrix product of x and y as matrices."""
    if x_num_col_dims != 1 or y_num_col_dims != 1 or x.ndim != 2 or y.ndim != 2:
        raise NotImplementedError("`fluid.layers.mul` of other than two matrices: use `matmul`")
    return _nn.matmul(x, y)


def cos_sim(X: Variable, Y: Variable) -> Variable:
    """The cosine of the angle between the rows of two matrices."""
    lengths = _nn.sqrt(_nn.multiply(_nn.sum(_nn.square(X), 1, keepdim=True), _nn.sum(_nn.square(Y), 1, keepdim=True)))
    return _nn.divide(_nn.sum(_nn.multiply(X, Y), 1, keepdim=True), lengths)


def assign(input: Any, output: Any = None) -> Variable:
    """A copy of a variable, or given numbers. With `output`, a variable of `create_global_var`, also sets that one."""
    return _nn.assign(input if isinstance(input, Variable) else _nn.literal(input), output)


def expand(x: Variable, expand_times: Sequence[int], name: str | None = None) -> Variable:
    """Repeats each dimension `expand_times` times."""
    return _nn.tile(x, expand_times)


def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """Rows picked by number."""
    return _nn.gather(input, index)


def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """A matrix product, or a batch of them, times `alpha`."""
    product = _nn.matmul(x, y, transpose_x, transpose_y)
    return product if alpha == 1.0 else _nn.scale(product, alpha)


def reshape(
    x: Variable,
    shape: Sequence[Any],
    actual_shape: Any = None,
    act: str | None = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """The same elements in another shape."""
    if actual_shape is not None:
        raise NotImplementedError("`actual_shape` of `fluid.layers.reshape`: say the shape, with -1 for the batch")
    return _activated(_nn.reshape(x, shape), act)


def sigmoid_cross_entropy_with_logits(
    x: Variable, label: Variable, ignore_index: int = -100, name: str | None = None, normalize: bool = False
) -> Variable:
    """Binary cross entropy of logits with float labels."""
    if ignore_index != -100 or normalize:
        raise NotImplementedError("`ignore_index` and `normalize` of `sigmoid_cross_entropy_with_logits`")
    return _nn.sigmoid_cross_entropy_with_logits(x, label)


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Any:
    """Returns the cross entropy of logits over classes, one loss per row, always in the numerically stable way."""
    if axis % logits.ndim != logits.ndim - 1:
        raise NotImplementedError(f"`axis={axis}` of `softmax_with_cross_entropy`: classes are the last dimension")
    return _nn.softmax_with_cross_entropy(logits, label, soft_label, ignore_index, return_softmax)


def where(condition: Variable) -> Variable:
    """Returns the positions where a condition is true, [N, number of axes]."""
    return _nn.nonzero(condition)


def sums(input: Sequence[Variable], out: Any = None) -> Variable:
    """The sum of several variables."""
    if out is not None:
        raise NotImplementedError("`out` of `fluid.layers.sums`: use what it returns")
    return _nn.add_n(input)


def noam_decay(d_model: float, warmup_steps: int, learning_rate: float = 1.0) -> Any:
    """`learning_rate * d_model ^ -0.5 * min(n ^ -0.5, n * warmup_steps ^ -1.5)`, with n = 1 in the first step."""
    return _lr.NoamDecay(d_model, warmup_steps, learning_rate)


def exponential_decay(learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> Any:
    """`learning_rate * decay_rate ^ (step / decay_steps)`."""
    return _lr.ExponentialDecay(learning_rate, decay_rate, decay_steps, staircase)


def natural_exp_decay(learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> Any:
    """`learning_rate * e ^ (-decay_rate * step / decay_steps)`."""
    return _lr.NaturalExpDecay(learning_rate, decay_rate, decay_steps, staircase)


def inverse_time_decay(learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> Any:
    """`learning_rate / (1 + decay_rate * step / decay_steps)`."""
    return _lr.InverseTimeDecay(learning_rate, decay_rate, decay_steps, staircase)


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Any:
    """`values[i]` where `i` boundaries are at or before the step."""
    return _lr.PiecewiseDecay(boundaries, values)


def linear_lr_warmup(learning_rate: Any, warmup_steps: int, start_lr: float, end_lr: float) -> Any:
    """From `start_lr` to `end_lr` in `warmup_steps` steps, then `learning_rate`."""
    return _lr.LinearWarmup(learning_rate, warmup_steps, start_lr, end_lr)


def polynomial_decay(
    learning_rate: float, decay_steps: int, end_learning_rate: float = 0.0001, power: float = 1.0, cycle: bool = False
) -> Any:
    """`(learning_rate - end) * (1 - step / decay_steps) ^ power + end`."""
    return _paddle_lr.PolynomialDecay(learning_rate, decay_steps, end_learning_rate, power, cycle)


def argmax(x: Variable, axis: int = 0) -> Variable:
    """The position of the greatest element along an axis."""
    return _tensor.argmax(x, axis)


def argmin(x: Variable, axis: int = 0) -> Variable:
    """The position of the least element along an axis."""
    return _tensor.argmin(x, axis)


def argsort(input: Variable, axis: int = -1, descending: bool = False, name: str | None = None) -> Any:
    """Returns the elements in order along an axis, and their positions."""
    return _nn.sort(input, axis, descending)


def elementwise_pow(x: Variable, y: Any, axis: int = -1, act: str | None = None, name: str | None = None) -> Variable:
    """x to the power of y."""
    if axis != -1:
        raise NotImplementedError(f"`axis={axis}` of `fluid.layers.elementwise_pow`: reshape `y` before")
    return _activated(_tensor.pow(x, y), act)


def elementwise_mod(x: Variable, y: Any, axis: int = -1, act: str | None = None, name: str | None = None) -> Variable:
    """The remainder of x by y."""
    if axis != -1:
        raise NotImplementedError(f"`axis={axis}` of `fluid.layers.elementwise_mod`: reshape `y` before")
    return _activated(_tensor.mod(x, y), act)


def reduce_prod(input: Variable, dim: Any = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """The product over some axes."""
    return _tensor.prod(input, dim, keep_dim)


def reduce_all(input: Variable, dim: Any = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Whether all elements over some axes are true."""
    return _tensor.all(input, dim, keep_dim)


def reduce_any(input: Variable, dim: Any = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Whether an element over some axes is true."""
    return _tensor.any(input, dim, keep_dim)


def cumsum(x: Variable, axis: int | None = None, exclusive: bool = False, reverse: bool = False) -> Variable:
    """The sums of the elements up to each one along an axis."""
    if exclusive or reverse:
        raise NotImplementedError("`exclusive` and `reverse` of `fluid.layers.cumsum`")
    return _tensor.cumsum(x, -1 if axis is None else axis)


def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """A matrix: the dimensions before `axis` as one, and the others as one."""
    if axis != 1:
        raise NotImplementedError(f"`axis={axis}` of `fluid.layers.flatten`: there is 1")
    return _nn.reshape(x, [0, -1])


def fill_constant_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    force_cpu: bool = False,
) -> Variable:
    """One number everywhere, in a shape with one size from another variable."""
    sizes: list[Any] = list(shape)
    sizes[output_dim_idx] = _nn.shape(input)[input_dim_idx]
    return _nn.full(sizes, value, dtype)


def range(start: Any, end: Any, step: Any, dtype: Any, name: str | None = None) -> Variable:
    """The numbers from `start` to before `end`."""
    return _tensor.arange(start, end, step, dtype)


def label_smooth(
    label: Variable, prior_dist: Any = None, epsilon: float = 0.1, dtype: Any = "float32", name: str | None = None
) -> Variable:
    """Labels that are mixed with a distribution over the classes, uniform by default."""
    if prior_dist is not None:
        return _nn.add(_nn.scale(label, 1.0 - epsilon), _nn.scale(prior_dist, epsilon))
    return _nn.scale(label, 1.0 - epsilon, epsilon / label.shape[-1])


def softsign(x: Variable, name: str | None = None) -> Variable:
    """x / (1 + |x|)."""
    return _nn.divide(x, _nn.scale(_nn.abs(x), bias=1.0))


def softplus(x: Variable, name: str | None = None) -> Variable:
    """log(1 + exp(x))."""
    return _functional.softplus(x)


def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """x above 0, and alpha * (exp(x) - 1) below."""
    return _functional.elu(x, alpha)


def gelu(x: Variable, approximate: bool = False) -> Variable:
    """x times the normal distribution at x."""
    return _functional.gelu(x, approximate)


def relu6(x: Variable, threshold: float = 6.0, name: str | None = None) -> Variable:
    """x between 0 and `threshold`."""
    return _nn.clip(x, 0.0, threshold)


def swish(x: Variable, beta: float = 1.0, name: str | None = None) -> Variable:
    """x * sigmoid(beta * x)."""
    return _nn.multiply(x, _nn.sigmoid(_nn.scale(x, beta)))


def hard_sigmoid(x: Variable, slope: float = 0.2, offset: float = 0.5, name: str | None = None) -> Variable:
    """`slope * x + offset`, between 0 and 1."""
    return _nn.clip(_nn.scale(x, slope, offset), 0.0, 1.0)


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """The parts of each number along an axis."""
    return _tensor.unbind(x, axis)


def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """Adds a number to a variable of `create_global_var`, or to a copy with `in_place=False`."""
    return _tensor.increment(x, value) if in_place else _nn.scale(x, bias=value)


def cross_entropy2(input: Variable, label: Variable, ignore_index: int = -100) -> Variable:
    """Cross entropy of probabilities, one loss per row."""
    return cross_entropy(input, label, ignore_index=ignore_index)


def smooth_l1(
    x: Variable, y: Variable, inside_weight: Any = None, outside_weight: Any = None, sigma: Any = None
) -> Any:
    """Half the square of the difference where it is below 1 / sigma^2, else linear; the sum of each row."""
    if inside_weight is not None or outside_weight is not None or sigma not in (None, 1, 1.0):
        raise NotImplementedError("weights and `sigma` of `fluid.layers.smooth_l1`")
    losses = _functional.smooth_l1_loss(x, y, reduction="none")
    return _nn.sum(_nn.reshape(losses, [0, -1]), 1, keepdim=True)


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Convolves planes with filters that are trained."""
    from ...nn import Conv2D

    channels = input.shape[1 if data_format == "NCHW" else -1]
    layer = Conv2D(
        channels,
        num_filters,
        filter_size,
        stride,
        padding,
        dilation,
        groups or 1,
        weight_attr=param_attr,
        bias_attr=bias_attr,
        data_format=data_format,
    )
    return _activated(layer(input), act)


def pool2d(
    input: Variable,
    pool_size: Any = -1,
    pool_type: str = "max",
    pool_stride: Any = 1,
    pool_padding: Any = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """The greatest element or the mean (`pool_type="avg"`) of each window of planes."""
    if pool_type not in ("max", "avg"):
        raise ValueError(f"`pool_type` of `fluid.layers.pool2d` expects `max` or `avg`, got `{pool_type}`")
    if data_format != "NCHW":
        raise NotImplementedError(f"`data_format={data_format!r}` of `fluid.layers.pool2d`: there is `NCHW`")
    if global_pooling:
        return (_nn.adaptive_max_pool2d if pool_type == "max" else _nn.adaptive_avg_pool2d)(input, 1)
    if pool_type == "max":
        return _nn.max_pool2d(input, pool_size, pool_stride, pool_padding, ceil_mode)
    return _nn.avg_pool2d(input, pool_size, pool_stride, pool_padding, ceil_mode, exclusive)


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> PyReader:
    """Declares the inputs of a program and returns a reader that feeds them. `read_file` returns the inputs."""
    name = _unique_name.generate("py_reader") if name is None else name
    levels = lod_levels or [0] * len(shapes)
    feeds = [
        _layers.data(f"{name}_{number}", shape, dtype, level)
        for number, (shape, dtype, level) in enumerate(zip(shapes, dtypes, levels))
    ]
    return create_py_reader_by_data(capacity, feeds)


def create_py_reader_by_data(
    capacity: int, feed_list: Sequence[Variable], name: str | None = None, use_double_buffer: bool = True
) -> PyReader:
    """Returns a reader that feeds these inputs of a program, between its `start()` and `reset()`."""
    return PyReader(feed_list, capacity, use_double_buffer, iterable=False)


def read_file(reader: PyReader) -> Any:
    """Returns the inputs that a reader feeds: a list, or the variable if there is one."""
    return reader._variables[0] if len(reader._variables) == 1 else list(reader._variables)


def double_buffer(reader: PyReader, place: Any = None, name: str | None = None) -> PyReader:
    """Returns the reader as it is: a thread reads ahead of it already."""
    return reader


__all__ = [name for name in dir() if not name.startswith("_") and name not in ("PyReader", "builtins", "compat")]
__all__ = [name for name in __all__ if name not in ("Any", "Sequence", "Variable", "annotations")]
__getattr__ = compat.absent(__name__, __all__)
