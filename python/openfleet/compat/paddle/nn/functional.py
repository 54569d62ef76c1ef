"""`paddle.nn.functional`: layers without parameters of their own."""

from __future__ import annotations

import math as _math
from typing import Any

from openfleet import compat
from openfleet.static import nn as _nn
from openfleet.static.nn.losses import reduced as _reduced
from openfleet.static.param_attr import ParamAttr as _ParamAttr
from openfleet.static.program import Variable

from .._layers import (
    leaky_relu,
    log_loss,
    prelu,
    relu,
    sequence_mask,
    sigmoid,
    square_error_cost,
    tanh,
)


def softmax(x: Variable, axis: int = -1, dtype: Any = None, name: str | None = None) -> Variable:
    """exp(x) / sum exp(x) along an axis."""
    return _nn.softmax(x if dtype is None else _nn.cast(x, dtype), axis)


def log_softmax(x: Variable, axis: int = -1, dtype: Any = None, name: str | None = None) -> Variable:
    """x - log sum exp(x) along an axis."""
    x = x if dtype is None else _nn.cast(x, dtype)
    x = _nn.subtract(x, _nn.max(x, axis, True))
    return _nn.subtract(x, _nn.log(_nn.sum(_nn.exp(x), axis, keepdim=True)))


def silu(x: Variable, name: str | None = None) -> Variable:
    """x times sigmoid(x)."""
    return _nn.multiply(x, _nn.sigmoid(x))


swish = silu


def softplus(x: Variable, beta: float = 1.0, threshold: float = 20.0, name: str | None = None) -> Variable:
    """log(1 + exp(beta x)) / beta, and x itself beyond `threshold`."""
    scaled = _nn.scale(x, beta)
    soft = _nn.scale(_nn.log(_nn.scale(_nn.exp(_nn.clip(scaled, None, threshold)), 1.0, 1.0)), 1.0 / beta)
    return _nn.where(_nn.greater_than(scaled, threshold), x, soft)


def dropout(
    x: Variable,
    p: float = 0.5,
    axis: Any = None,
    training: bool = True,
    mode: str = "upscale_in_train",
    name: str | None = None,
) -> Variable:
    """Zeros at random, in training. A program's copy for test drops nothing, and nor does `training=False`."""
    if axis is not None:
        raise NotImplementedError("`axis` of `dropout`: elements are dropped one by one")
    if not training:
        return x if mode == "upscale_in_train" else _nn.scale(x, 1.0 - p)
    return _nn.dropout(x, p, mode)


def pad(
    x: Variable,
    pad: Any,
    mode: str = "constant",
    value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Adds elements before and after dimensions: two numbers for each dimension, or only for the last ones."""
    if mode != "constant":
        raise NotImplementedError(f"`mode={mode!r}` of `pad`: there is `constant`")
    sides = [int(side) for side in pad]
    if len(sides) == 2 * x.ndim:
        axes = list(range(x.ndim))
    else:
        # The last dimension first, without the channels if they are last.
        end = x.ndim - (1 if data_format.endswith("C") else 0)
        axes = [end - 1 - at for at in range(len(sides) // 2)]
    for axis, before, after in zip(axes, sides[::2], sides[1::2]):
        parts = [_filled_along(x, axis, before, value), x, _filled_along(x, axis, after, value)]
        x = _nn.concat([part for part in parts if part is not None], axis)
    return x


def _filled_along(x: Variable, axis: int, count: int, value: float) -> Variable | None:
    if count == 0:
        return None
    one = _nn.full_like(_nn.slice(x, [axis], [0], [1]), value)
    times = [1] * x.ndim
    times[axis] = count
    return _nn.tile(one, times)


def linear(x: Variable, weight: Variable, bias: Variable | None = None, name: str | None = None) -> Variable:
    """`x weight + bias`."""
    bias_attr: Any = False if bias is None else _ParamAttr(name=bias.name)
    if weight.kind != "parameter" or (bias is not None and bias.kind != "parameter"):
        y = _nn.matmul(x, weight)
        return y if bias is None else _nn.add(y, bias)
    return _nn.fc(x, weight.shape[1], x.ndim - 1, _ParamAttr(name=weight.name), bias_attr)


def embedding(
    x: Variable, weight: Variable, padding_idx: int | None = None, sparse: bool = False, name: str | None = None
) -> Variable:
    """The rows of a parameter, by id."""
    if weight.kind not in ("parameter", "table"):
        raise TypeError(f"`weight` of `embedding` expects a parameter, got `{weight.name}`, a {weight.kind}")
    if sparse and weight.kind == "parameter":
        raise NotImplementedError("`sparse=True` on a dense parameter: use `paddle.nn.Embedding(sparse=True)`")
    attr = _ParamAttr(name=weight.name)
    return _nn.embedding(x, weight.shape, weight.kind == "table", padding_idx=padding_idx, param_attr=attr)


def one_hot(x: Variable, num_classes: int, name: str | None = None) -> Variable:
    """Integers as rows with a single 1."""
    return _nn.one_hot(x, num_classes)


def normalize(x: Variable, p: float = 2, axis: int = 1, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """x over its length along an axis, which counts as `epsilon` at least."""
    if p != 2:
        raise NotImplementedError(f"`p={p!r}` of `normalize`: there is the Euclidean length, 2")
    # A root of 0 has no gradient, so the bound is put under it.
    squares = _nn.sum(_nn.square(x), axis, keepdim=True)
    return _nn.divide(x, _nn.sqrt(_nn.clip(squares, epsilon * epsilon)))


def cosine_similarity(x1: Variable, x2: Variable, axis: int = 1, eps: float = 1e-8) -> Variable:
    """The cosine of the angle between vectors along an axis."""
    dot = _nn.sum(_nn.multiply(x1, x2), axis)
    lengths = _nn.multiply(_nn.sum(_nn.square(x1), axis), _nn.sum(_nn.square(x2), axis))
    return _nn.divide(dot, _nn.sqrt(_nn.clip(lengths, eps * eps)))


def layer_norm(
    x: Variable,
    normalized_shape: Any,
    weight: Variable | None = None,
    bias: Variable | None = None,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> Variable:
    """Normalises over the last dimensions."""
    dims = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    if list(x.shape[-len(dims) :]) != dims:
        raise ValueError(f"`normalized_shape` {dims} are not the last dimensions of {list(x.shape)}")
    scale = None if weight is None else _ParamAttr(name=weight.name)
    shift = None if bias is None else _ParamAttr(name=bias.name)
    has = weight is not None, bias is not None
    return _nn.layer_norm(x, *has, x.ndim - len(dims), epsilon, scale, shift)


def gelu(x: Variable, approximate: bool = False, name: str | None = None) -> Variable:
    """x times the share of a standard normal distribution below x."""
    if approximate:
        cube = _nn.multiply(_nn.square(x), x)
        inner = _nn.scale(_nn.add(x, _nn.scale(cube, 0.044715)), (2.0 / _math.pi) ** 0.5)
        return _nn.multiply(_nn.scale(x, 0.5), _nn.scale(_nn.tanh(inner), 1.0, 1.0))
    return _nn.multiply(_nn.scale(x, 0.5), _nn.scale(_nn.erf(_nn.scale(x, 0.5**0.5)), 1.0, 1.0))


def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """x above 0, and alpha (exp(x) - 1) below."""
    below = _nn.scale(_nn.exp(_nn.clip(x, None, 0.0)), alpha, -alpha)
    return _nn.add(_nn.relu(x), below)


def relu6(x: Variable, name: str | None = None) -> Variable:
    """x between 0 and 6."""
    return _nn.clip(x, 0.0, 6.0)


def hardsigmoid(x: Variable, slope: float = 1 / 6, offset: float = 0.5, name: str | None = None) -> Variable:
    """`slope x + offset` between 0 and 1."""
    return _nn.clip(_nn.scale(x, slope, offset), 0.0, 1.0)


def log_sigmoid(x: Variable, name: str | None = None) -> Variable:
    """log(sigmoid(x))."""
    return _nn.scale(softplus(_nn.scale(x, -1.0)), -1.0)


# Convolutions and pooling.


def conv2d(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """The convolution of planes with filters `[M, C / groups, KH, KW]`."""
    last = _channels_last("conv2d", data_format, "NCHW", "NHWC")
    y = _nn.conv2d(_nn.transpose(x, [0, 3, 1, 2]) if last else x, weight, stride, padding, dilation, groups)
    y = y if bias is None else _nn.add(y, bias, 1)
    return _nn.transpose(y, [0, 2, 3, 1]) if last else y


def conv1d(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    data_format: str = "NCL",
    name: str | None = None,
) -> Variable:
    """The convolution of sequences with filters `[M, C / groups, K]`."""
    last = _channels_last("conv1d", data_format, "NCL", "NLC")
    planes = _nn.unsqueeze(_nn.transpose(x, [0, 2, 1]) if last else x, [2])
    sides = padding if isinstance(padding, str) else [0, 0, *_sides(padding)]
    options = [1, _one(stride)], sides, [1, _one(dilation)], groups
    y = _nn.squeeze(_nn.conv2d(planes, _nn.unsqueeze(weight, [2]), *options), [2])
    y = y if bias is None else _nn.add(y, bias, 1)
    return _nn.transpose(y, [0, 2, 1]) if last else y


def max_pool2d(
    x: Variable,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """The greatest element of each window of planes."""
    _no_mask("max_pool2d", return_mask)
    _channels_last("max_pool2d", data_format, "NCHW")
    return _nn.max_pool2d(x, kernel_size, stride, padding, ceil_mode)


def max_pool1d(
    x: Variable,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Variable:
    """The greatest element of each window of sequences `[N, C, L]`."""
    _no_mask("max_pool1d", return_mask)
    return _over_sequences(x, lambda planes: _nn.max_pool2d(planes, *_flat(kernel_size, stride, padding), ceil_mode))


def avg_pool2d(
    x: Variable,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    exclusive: bool = True,
    divisor_override: float | None = None,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """The mean of each window of planes."""
    if divisor_override is not None:
        raise NotImplementedError("`divisor_override` of `avg_pool2d`")
    _channels_last("avg_pool2d", data_format, "NCHW")
    return _nn.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, exclusive)


def avg_pool1d(
    x: Variable,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    exclusive: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Variable:
    """The mean of each window of sequences `[N, C, L]`."""
    sizes = _flat(kernel_size, stride, padding)
    return _over_sequences(x, lambda planes: _nn.avg_pool2d(planes, *sizes, ceil_mode, exclusive))


def adaptive_max_pool2d(x: Variable, output_size: Any, return_mask: bool = False, name: str | None = None) -> Variable:
    """The greatest element of each of `output_size` windows of planes."""
    _no_mask("adaptive_max_pool2d", return_mask)
    return _nn.adaptive_max_pool2d(x, output_size)


def adaptive_max_pool1d(x: Variable, output_size: int, return_mask: bool = False, name: str | None = None) -> Variable:
    """The greatest element of each of `output_size` windows of sequences."""
    _no_mask("adaptive_max_pool1d", return_mask)
    return _over_sequences(x, lambda planes: _nn.adaptive_max_pool2d(planes, [1, _one(output_size)]))


def adaptive_avg_pool2d(x: Variable, output_size: Any, data_format: str = "NCHW", name: str | None = None) -> Variable:
    """The mean of each of `output_size` windows of planes."""
    _channels_last("adaptive_avg_pool2d", data_format, "NCHW")
    return _nn.adaptive_avg_pool2d(x, output_size)


def adaptive_avg_pool1d(x: Variable, output_size: int, name: str | None = None) -> Variable:
    """The mean of each of `output_size` windows of sequences."""
    return _over_sequences(x, lambda planes: _nn.adaptive_avg_pool2d(planes, [1, _one(output_size)]))


def _over_sequences(x: Variable, layer: Any) -> Variable:
    return _nn.squeeze(layer(_nn.unsqueeze(x, [2])), [2])


def _one(value: Any) -> int:
    return int(value) if isinstance(value, int) else int(value[0])


def _sides(padding: Any) -> list[int]:
    sides = [padding] if isinstance(padding, int) else list(padding)
    return [int(sides[0]), int(sides[-1])]


def _flat(kernel_size: Any, stride: Any, padding: Any) -> tuple[list[int], list[int], list[int]]:
    size = _one(kernel_size)
    return [1, size], [1, size if stride is None else _one(stride)], [0, 0, *_sides(padding)]


def _no_mask(what: str, return_mask: bool) -> None:
    if return_mask:
        raise NotImplementedError(f"`return_mask=True` of `{what}`")


def _channels_last(what: str, data_format: str, first: str, last: str | None = None) -> bool:
    if data_format not in (first, last):
        wanted = f"`{first}`" if last is None else f"`{first}` or `{last}`"
        raise NotImplementedError(f"`data_format` of `{what}` expects {wanted}, got `{data_format}`")
    return data_format != first


# Losses.


def binary_cross_entropy(
    input: Variable, label: Variable, weight: Variable | None = None, reduction: str = "mean", name: str | None = None
) -> Variable:
    """Binary cross entropy of probabilities with float labels."""
    losses = _nn.binary_cross_entropy(input, label, "none")
    return _reduced(losses if weight is None else _nn.multiply(losses, weight), reduction)


def binary_cross_entropy_with_logits(
    logit: Variable,
    label: Variable,
    weight: Variable | None = None,
    reduction: str = "mean",
    pos_weight: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Binary cross entropy of logits with float labels."""
    losses = _nn.sigmoid_cross_entropy_with_logits(logit, label)
    if pos_weight is not None:
        # As in PaddlePaddle, both terms of the loss are weighted.
        extra = _nn.multiply(label, _nn.scale(pos_weight, 1.0, -1.0))
        losses = _nn.multiply(losses, _nn.scale(extra, 1.0, 1.0))
    return _reduced(losses if weight is None else _nn.multiply(losses, weight), reduction)


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
    _last_axis("softmax_with_cross_entropy", logits, axis)
    return _nn.softmax_with_cross_entropy(logits, label, soft_label, ignore_index, return_softmax)


def cross_entropy(
    input: Variable,
    label: Variable,
    weight: Variable | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    soft_label: bool = False,
    axis: int = -1,
    use_softmax: bool = True,
    name: str | None = None,
) -> Variable:
    """Cross entropy over classes: of logits, or with `use_softmax=False` of probabilities."""
    _last_axis("cross_entropy", input, axis)
    flat = not soft_label and label.ndim == input.ndim - 1
    labels = _nn.unsqueeze(label, -1) if flat else label
    function = _nn.softmax_with_cross_entropy if use_softmax else _nn.cross_entropy
    losses = function(input, labels, soft_label, ignore_index)
    weights = None
    if weight is not None:
        if soft_label:
            raise NotImplementedError("`weight` of `cross_entropy` with soft labels")
        if ignore_index >= 0:
            raise NotImplementedError("`weight` of `cross_entropy` together with `ignore_index`")
        picked = _nn.gather(weight, _nn.reshape(labels, [-1]))
        weights = _nn.reshape(picked, [-1, *losses.shape[1:]])
        losses = _nn.multiply(losses, weights)
    elif ignore_index >= 0 and not soft_label:
        weights = _nn.cast(_nn.not_equal(labels, ignore_index), "float32")
    if reduction == "mean" and weights is not None:
        return _nn.divide(_nn.sum(losses), _nn.sum(weights))
    return _reduced(_nn.squeeze(losses, [-1]) if flat and reduction == "none" else losses, reduction)


def _last_axis(what: str, x: Variable, axis: int) -> None:
    if axis % x.ndim != x.ndim - 1:
        raise NotImplementedError(f"`axis={axis}` of `{what}`: classes are the last dimension")


def kl_div(input: Variable, label: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """The divergence of probabilities from logarithms of probabilities: `label (log(label) - input)`."""
    logs = _nn.log(_nn.clip(label, 1e-38))
    losses = _nn.where(
        _nn.greater_than(label, 0.0), _nn.multiply(label, _nn.subtract(logs, input)), _nn.zeros_like(input)
    )
    if reduction == "batchmean":
        return _nn.divide(_nn.sum(losses), _nn.cast(_nn.assign(_nn.shape(input)[0]), "float32"))
    return _reduced(losses, reduction)


def margin_ranking_loss(
    input: Variable,
    other: Variable,
    label: Variable,
    margin: float = 0.0,
    reduction: str = "mean",
    name: str | None = None,
) -> Variable:
    """How far `label (input - other)` is below a margin."""
    product = _nn.multiply(_nn.subtract(other, input), label)
    return _reduced(_nn.relu(_nn.scale(product, 1.0, margin)), reduction)


def smooth_l1_loss(
    input: Variable, label: Variable, reduction: str = "mean", delta: float = 1.0, name: str | None = None
) -> Variable:
    """The squared difference below `delta`, the absolute difference beyond."""
    size = _nn.abs(_nn.subtract(input, label))
    inner = _nn.scale(_nn.square(size), 0.5)
    outer = _nn.scale(size, delta, -0.5 * delta * delta)
    return _reduced(_nn.where(_nn.less_than(size, delta), inner, outer), reduction)


def mse_loss(input: Variable, label: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """The squared difference."""
    return _reduced(_nn.square_error_cost(input, label), reduction)


def l1_loss(input: Variable, label: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """The absolute difference."""
    return _reduced(_nn.abs(_nn.subtract(input, label)), reduction)


__all__ = [name for name in dir() if name[0].islower() and name not in ("annotations", "compat")]
__getattr__ = compat.absent(__name__, __all__)
