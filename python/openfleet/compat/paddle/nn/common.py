"""Layers with parameters, activations as layers, and losses as layers."""

from __future__ import annotations

from typing import Any

from openfleet.static import nn as _nn
from openfleet.static import unique_name
from openfleet.static.initializer import Constant
from openfleet.static.nn._ops import activated as _activated
from openfleet.static.param_attr import ParamAttr, with_defaults
from openfleet.static.program import Variable

from .. import _layers
from . import functional as F
from .layer import Layer


class Linear(Layer):
    """`x weight + bias`, of the last dimension; `bias_attr=False` leaves the bias out."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if weight_attr is False:
            raise ValueError("`weight_attr=False` of Linear: it has a weight")
        self.in_features, self.out_features = in_features, out_features
        self.weight = self.create_parameter([in_features, out_features], weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """`x weight + bias`."""
        return F.linear(input, self.weight, self.bias)


class Embedding(Layer):
    """Looks up ids in a parameter; with `sparse=True` in a sparse table, which servers keep."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        weight_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._num_embeddings, self._embedding_dim = num_embeddings, embedding_dim
        self._size, self._padding_idx, self._sparse = [num_embeddings, embedding_dim], padding_idx, sparse
        attr = with_defaults(weight_attr)
        if attr.name is None:
            attr.name = unique_name.generate(f"{self.full_name()}.w")
        self._attr = attr
        if not sparse:
            self.weight = self.create_parameter(self._size, attr)

    def forward(self, x: Variable) -> Variable:
        """The rows of ids `[..]`, as `[.., embedding_dim]`."""
        rows = _layers.embedding(x, self._size, self._sparse, padding_idx=self._padding_idx, param_attr=self._attr)
        if self._sparse and x.program.has_var(self._attr.name):
            # The first lookup declares the table.
            self.weight = x.program.var(self._attr.name)
        return rows


class Dropout(Layer):
    """Sets elements to zero at random in training."""

    def __init__(
        self, p: float = 0.5, axis: Any = None, mode: str = "upscale_in_train", name: str | None = None
    ) -> None:
        super().__init__()
        self.p, self.axis, self.mode = p, axis, mode

    def forward(self, input: Variable) -> Variable:
        """Sets elements to zero at random in training."""
        return F.dropout(input, self.p, self.axis, self.training, self.mode)


class Flatten(Layer):
    """Merges several dimensions into one."""

    def __init__(self, start_axis: int = 1, stop_axis: int = -1) -> None:
        super().__init__()
        self.start_axis, self.stop_axis = start_axis, stop_axis

    def forward(self, input: Variable) -> Variable:
        """Merges several dimensions into one."""
        return _nn.flatten(input, self.start_axis, self.stop_axis)


class _Norm(Layer):
    """Normalises each of the channels over the batch, with the statistics of training in evaluation."""

    def __init__(
        self,
        channels: int,
        momentum: float,
        epsilon: float,
        weight_attr: Any,
        bias_attr: Any,
        layout: str,
        use_global_stats: bool,
        moving_names: tuple[str | None, str | None] = (None, None),
    ) -> None:
        super().__init__()
        self._momentum, self._epsilon, self._layout = momentum, epsilon, layout
        self._use_global_stats = bool(use_global_stats)
        # As in PaddlePaddle, a scale or shift that is switched off stays 1 or 0.
        frozen = ParamAttr(trainable=False)
        scale, shift = (frozen if attr is False else attr for attr in (weight_attr, bias_attr))
        self.weight = self.create_parameter([channels], scale, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([channels], shift, is_bias=True)
        words = zip(moving_names, ("mean", "variance"))
        self._moving = [name or unique_name.generate(f"{self.full_name()}.{word}") for name, word in words]

    def forward(self, input: Variable) -> Variable:
        """Normalises each of the channels over the batch."""
        attrs = [ParamAttr(name=parameter.name) for parameter in (self.weight, self.bias)]
        return _nn.batch_norm(
            input,
            momentum=self._momentum,
            epsilon=self._epsilon,
            param_attr=attrs[0],
            bias_attr=attrs[1],
            data_layout=self._layout,
            moving_mean_name=self._moving[0],
            moving_variance_name=self._moving[1],
            use_global_stats=self._use_global_stats or not self.training,
        )


class BatchNorm(_Norm):
    """Normalises each of the channels over the batch, then an activation."""

    def __init__(
        self,
        num_channels: int,
        act: str | None = None,
        is_test: bool = False,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: str = "float32",
        data_layout: str = "NCHW",
        in_place: bool = False,
        moving_mean_name: str | None = None,
        moving_variance_name: str | None = None,
        do_model_average_for_mean_and_var: bool = True,
        use_global_stats: bool = False,
        trainable_statistics: bool = False,
    ) -> None:
        if trainable_statistics:
            raise NotImplementedError("`trainable_statistics=True` of BatchNorm")
        names = moving_mean_name, moving_variance_name
        fixed = use_global_stats or is_test
        super().__init__(num_channels, momentum, epsilon, param_attr, bias_attr, data_layout, fixed, names)
        self._act = act

    def forward(self, input: Variable) -> Variable:
        """Normalises each of the channels over the batch, then an activation."""
        return _activated(super().forward(input), self._act)


class BatchNorm1D(_Norm):
    """Normalises each of the features of `[N, C]` or `[N, C, L]` over the batch."""

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCL",
        use_global_stats: bool | None = None,
        name: str | None = None,
    ) -> None:
        layouts = {"NC": "NCHW", "NCL": "NCHW", "NLC": "NHWC"}
        if data_format not in layouts:
            raise ValueError(f"`data_format` of BatchNorm1D cannot be `{data_format}`: `NC`, `NCL` or `NLC`")
        layout, fixed = layouts[data_format], bool(use_global_stats)
        super().__init__(num_features, momentum, epsilon, weight_attr, bias_attr, layout, fixed)


class BatchNorm2D(_Norm):
    """Normalises each of the channels of `[N, C, H, W]` over the batch."""

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCHW",
        use_global_stats: bool | None = None,
        name: str | None = None,
    ) -> None:
        if data_format not in ("NCHW", "NHWC"):
            raise ValueError(f"`data_format` of BatchNorm2D cannot be `{data_format}`: `NCHW` or `NHWC`")
        fixed = bool(use_global_stats)
        super().__init__(num_features, momentum, epsilon, weight_attr, bias_attr, data_format, fixed)


class LayerNorm(Layer):
    """Normalises over the last dimensions."""

    def __init__(
        self,
        normalized_shape: Any,
        epsilon: float = 1e-5,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
        self._epsilon = epsilon
        size = 1
        for dimension in self._shape:
            size *= dimension
        self.weight = self.create_parameter([size], weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([size], bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """Normalises over the last dimensions."""
        return F.layer_norm(input, self._shape, self.weight, self.bias, self._epsilon)


# Activations.


class ReLU(Layer):
    """max(x, 0)."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()

    def forward(self, x: Variable) -> Variable:
        """max(x, 0)."""
        return F.relu(x)


class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()

    def forward(self, x: Variable) -> Variable:
        """1 / (1 + exp(-x))."""
        return F.sigmoid(x)


class Tanh(Layer):
    """tanh(x)."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()

    def forward(self, x: Variable) -> Variable:
        """tanh(x)."""
        return F.tanh(x)


class Softmax(Layer):
    """exp(x) / sum exp(x) along an axis."""

    def __init__(self, axis: int = -1, name: str | None = None) -> None:
        super().__init__()
        self._axis = axis

    def forward(self, x: Variable) -> Variable:
        """exp(x) / sum exp(x) along an axis."""
        return F.softmax(x, self._axis)


class LeakyReLU(Layer):
    """Returns x above 0, and `negative_slope * x` below."""

    def __init__(self, negative_slope: float = 0.01, name: str | None = None) -> None:
        super().__init__()
        self._negative_slope = negative_slope

    def forward(self, x: Variable) -> Variable:
        """Returns x above 0, and `negative_slope * x` below."""
        return F.leaky_relu(x, self._negative_slope)


class PReLU(Layer):
    """Returns x above 0, and x times a trained weight below."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        weight_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._data_format = data_format
        self.weight = self.create_parameter([num_parameters], weight_attr, default_initializer=Constant(init))

    def forward(self, x: Variable) -> Variable:
        """Returns x above 0, and x times a trained weight below."""
        return F.prelu(x, self.weight, self._data_format)


class GELU(Layer):
    """x times the share of a standard normal distribution below x."""

    def __init__(self, approximate: bool = False, name: str | None = None) -> None:
        super().__init__()
        self._approximate = approximate

    def forward(self, x: Variable) -> Variable:
        """x times the share of a standard normal distribution below x."""
        return F.gelu(x, self._approximate)


class ELU(Layer):
    """x above 0, and alpha (exp(x) - 1) below."""

    def __init__(self, alpha: float = 1.0, name: str | None = None) -> None:
        super().__init__()
        self._alpha = alpha

    def forward(self, x: Variable) -> Variable:
        """x above 0, and alpha (exp(x) - 1) below."""
        return F.elu(x, self._alpha)


class Silu(Layer):
    """x times sigmoid(x)."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()

    def forward(self, x: Variable) -> Variable:
        """x times sigmoid(x)."""
        return F.silu(x)


Swish = Silu


class Softplus(Layer):
    """log(1 + exp(beta x)) / beta."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0, name: str | None = None) -> None:
        super().__init__()
        self._beta, self._threshold = beta, threshold

    def forward(self, x: Variable) -> Variable:
        """log(1 + exp(beta x)) / beta."""
        return F.softplus(x, self._beta, self._threshold)


class Identity(Layer):
    """x itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Variable) -> Variable:
        """x itself."""
        return input


# Losses.


class BCELoss(Layer):
    """Binary cross entropy of probabilities with float labels."""

    def __init__(self, weight: Variable | None = None, reduction: str = "mean", name: str | None = None) -> None:
        super().__init__()
        self._weight, self._reduction = weight, reduction

    def forward(self, input: Variable, label: Variable) -> Variable:
        """Binary cross entropy of probabilities with float labels."""
        return F.binary_cross_entropy(input, label, self._weight, self._reduction)


class BCEWithLogitsLoss(Layer):
    """Binary cross entropy of logits with float labels."""

    def __init__(
        self,
        weight: Variable | None = None,
        reduction: str = "mean",
        pos_weight: Variable | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._weight, self._reduction, self._pos_weight = weight, reduction, pos_weight

    def forward(self, logit: Variable, label: Variable) -> Variable:
        """Binary cross entropy of logits with float labels."""
        return F.binary_cross_entropy_with_logits(logit, label, self._weight, self._reduction, self._pos_weight)


class CrossEntropyLoss(Layer):
    """Cross entropy over classes: of logits, or with `use_softmax=False` of probabilities."""

    def __init__(
        self,
        weight: Variable | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        soft_label: bool = False,
        axis: int = -1,
        use_softmax: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._arguments = weight, ignore_index, reduction, soft_label, axis, use_softmax

    def forward(self, input: Variable, label: Variable) -> Variable:
        """Cross entropy over classes."""
        return F.cross_entropy(input, label, *self._arguments)


class MSELoss(Layer):
    """The squared difference."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self._reduction = reduction

    def forward(self, input: Variable, label: Variable) -> Variable:
        """The squared difference."""
        return F.mse_loss(input, label, self._reduction)


class L1Loss(Layer):
    """The absolute difference."""

    def __init__(self, reduction: str = "mean", name: str | None = None) -> None:
        super().__init__()
        self._reduction = reduction

    def forward(self, input: Variable, label: Variable) -> Variable:
        """The absolute difference."""
        return F.l1_loss(input, label, self._reduction)


class KLDivLoss(Layer):
    """The divergence of probabilities from logarithms of probabilities."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self._reduction = reduction

    def forward(self, input: Variable, label: Variable) -> Variable:
        """The divergence of probabilities from logarithms of probabilities."""
        return F.kl_div(input, label, self._reduction)


class MarginRankingLoss(Layer):
    """How far `label (input - other)` is below a margin."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean", name: str | None = None) -> None:
        super().__init__()
        self._margin, self._reduction = margin, reduction

    def forward(self, input: Variable, other: Variable, label: Variable) -> Variable:
        """How far `label (input - other)` is below a margin."""
        return F.margin_ranking_loss(input, other, label, self._margin, self._reduction)
