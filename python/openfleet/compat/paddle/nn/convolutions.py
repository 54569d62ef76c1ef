"""Convolutions and pooling as layers, over planes [N, C, H, W] and sequences [N, C, L]."""

from __future__ import annotations

from typing import Any

from openfleet.static.initializer import Normal
from openfleet.static.nn.convolutions import pair
from openfleet.static.program import Variable

from . import functional as F
from .layer import Layer


class _Conv(Layer):
    """Convolves planes, or sequences as planes of height 1, with filters that are trained."""

    _dims = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ) -> None:
        super().__init__()
        if padding_mode != "zeros":
            raise NotImplementedError(f"`padding_mode={padding_mode!r}` of {type(self).__name__}: there is `zeros`")
        if weight_attr is False:
            raise ValueError(f"`weight_attr=False` of {type(self).__name__}: it has filters")
        if in_channels % groups:
            raise ValueError(
                f"`in_channels` {in_channels} of {type(self).__name__} is not divisible by {groups} groups"
            )
        sizes = (
            pair(kernel_size) if self._dims == 2 else [kernel_size if isinstance(kernel_size, int) else kernel_size[0]]
        )
        self._options = stride, padding, dilation, groups, data_format or ("NCHW" if self._dims == 2 else "NCL")
        elements = in_channels // groups
        shape = [out_channels, elements, *sizes]
        for size in sizes:
            elements *= size
        # As in PaddlePaddle: of the size that keeps the variance of the inputs.
        first = Normal(0.0, (2.0 / elements) ** 0.5)
        self.weight = self.create_parameter(shape, weight_attr, default_initializer=first)
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)


class Conv2D(_Conv):
    """Convolves planes `[N, C, H, W]` with filters that are trained."""

    def forward(self, x: Variable) -> Variable:
        """Convolves planes."""
        return F.conv2d(x, self.weight, self.bias, *self._options)


class Conv1D(_Conv):
    """Convolves sequences `[N, C, L]` with filters that are trained."""

    _dims = 1

    def forward(self, x: Variable) -> Variable:
        """Convolves sequences."""
        return F.conv1d(x, self.weight, self.bias, *self._options)


class _Pool(Layer):
    """Applies a function of `nn.functional` with the arguments of the layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        kwargs.pop("name", None)
        self._args, self._kwargs = args, kwargs

    def forward(self, x: Variable) -> Variable:
        """Pools windows."""
        function = getattr(F, _FUNCTIONS[type(self).__name__])
        return function(x, *self._args, **self._kwargs)


class MaxPool1D(_Pool):
    """The greatest element of each window of sequences."""


class MaxPool2D(_Pool):
    """The greatest element of each window of planes."""


class AvgPool1D(_Pool):
    """The mean of each window of sequences."""


class AvgPool2D(_Pool):
    """The mean of each window of planes."""


class AdaptiveMaxPool1D(_Pool):
    """The greatest element of each of a number of windows of sequences."""


class AdaptiveMaxPool2D(_Pool):
    """The greatest element of each of a number of windows of planes."""


class AdaptiveAvgPool1D(_Pool):
    """The mean of each of a number of windows of sequences."""


class AdaptiveAvgPool2D(_Pool):
    """The mean of each of a number of windows of planes."""


_FUNCTIONS = {
    "MaxPool1D": "max_pool1d",
    "MaxPool2D": "max_pool2d",
    "AvgPool1D": "avg_pool1d",
    "AvgPool2D": "avg_pool2d",
    "AdaptiveMaxPool1D": "adaptive_max_pool1d",
    "AdaptiveMaxPool2D": "adaptive_max_pool2d",
    "AdaptiveAvgPool1D": "adaptive_avg_pool1d",
    "AdaptiveAvgPool2D": "adaptive_avg_pool2d",
}
