"""`paddle.nn.functional`: layers without parameters of their own."""

from __future__ import annotations

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


def mse_loss(input: Variable, label: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """The squared difference."""
    return _reduced(_nn.square_error_cost(input, label), reduction)


def l1_loss(input: Variable, label: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """The absolute difference."""
    return _reduced(_nn.abs(_nn.subtract(input, label)), reduction)


__all__ = [name for name in dir() if name[0].islower() and name not in ("annotations", "compat")]
__getattr__ = compat.absent(__name__, __all__)
