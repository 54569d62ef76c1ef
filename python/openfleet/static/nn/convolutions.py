"""Convolutions and pooling over planes [N, C, H, W]: N rows, C channels, H x W elements each.

A sequence [N, C, L] is a plane of height 1: `unsqueeze(x, [2])` and windows of height 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..program import Variable
from ._ops import net_of, variable


def conv2d(
    x: Variable,
    filters: Variable,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Variable:
    """Returns the convolution of planes with filters, which are not flipped.

    Args:
        x: [N, C, H, W] floats.
        filters: [M, C / groups, KH, KW], one filter per channel of the result.
        stride: The distance between windows, one number or one for H and one for W.
        padding: Elements of zeros around a plane: one number, [H, W], or [top, bottom, left, right]; or `"same"` (a
            result of H / stride), or `"valid"` (none).
        dilation: The distance between the elements of a window.
        groups: How many groups the channels are divided into; each group of filters reads its own.

    Returns:
        [N, M, H', W'].

    >>> x = static.nn.literal([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])
    >>> y = static.nn.conv2d(x, static.nn.literal([[[[1.0, 1.0]]]]))
    >>> exe.run(fetch_list=[y])[0].tolist()
    [[[[3.0, 5.0], [9.0, 11.0]]]]
    """
    windows = _windows(filters.shape[2:], stride, padding, dilation, x.shape[2:])
    return variable(net_of(x, filters).conv2d(x.name, filters.name, windows, int(groups)))


def max_pool2d(
    x: Variable, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False
) -> Variable:
    """Returns the greatest element of each window of planes [N, C, H, W].

    `stride` is the size of a window by default. With `ceil_mode` a last window may reach beyond the plane.

    >>> x = static.nn.literal([[[[1.0, 2.0], [4.0, 3.0]]]])
    >>> exe.run(fetch_list=[static.nn.max_pool2d(x, [2, 1])])[0].tolist()
    [[[[4.0, 3.0]]]]
    """
    windows = _windows(pair(kernel_size), kernel_size if stride is None else stride, padding, 1, x.shape[2:])
    return variable(net_of(x).pool2d(x.name, "max", windows, bool(ceil_mode)))


def avg_pool2d(
    x: Variable,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    exclusive: bool = True,
) -> Variable:
    """Returns the mean of each window of planes [N, C, H, W]. Padding counts as zeros unless `exclusive`.

    >>> x = static.nn.literal([[[[1.0, 2.0], [4.0, 3.0]]]])
    >>> exe.run(fetch_list=[static.nn.avg_pool2d(x, 2)])[0].tolist()
    [[[[2.5]]]]
    """
    windows = _windows(pair(kernel_size), kernel_size if stride is None else stride, padding, 1, x.shape[2:])
    kind = "mean" if exclusive else "mean_with_padding"
    return variable(net_of(x).pool2d(x.name, kind, windows, bool(ceil_mode)))


def adaptive_max_pool2d(x: Variable, output_size: Any) -> Variable:
    """Divides planes [N, C, H, W] into `output_size` windows and returns the greatest element of each.

    >>> x = static.nn.literal([[[[1.0, 2.0, 5.0, 3.0]]]])
    >>> exe.run(fetch_list=[static.nn.adaptive_max_pool2d(x, [1, 2])])[0].tolist()
    [[[[2.0, 5.0]]]]
    """
    return variable(net_of(x).adaptive_pool2d(x.name, "max", _counts(x, output_size)))


def adaptive_avg_pool2d(x: Variable, output_size: Any) -> Variable:
    """Divides planes [N, C, H, W] into `output_size` windows and returns the mean of each.

    >>> x = static.nn.literal([[[[1.0, 2.0, 5.0, 3.0]]]])
    >>> exe.run(fetch_list=[static.nn.adaptive_avg_pool2d(x, [1, 2])])[0].tolist()
    [[[[1.5, 4.0]]]]
    """
    return variable(net_of(x).adaptive_pool2d(x.name, "mean", _counts(x, output_size)))


def pair(value: Any) -> list[int]:
    """Returns one number, or two, as two."""
    return [int(value)] * 2 if isinstance(value, int) else [int(one) for one in value]


def _counts(x: Variable, output_size: Any) -> list[int]:
    wanted = [output_size] * 2 if output_size is None or isinstance(output_size, int) else output_size
    return [size if count is None else int(count) for count, size in zip(wanted, x.shape[2:])]


def _windows(sizes: Sequence[int], stride: Any, padding: Any, dilation: Any, plane: Sequence[int]) -> list[list[int]]:
    strides, dilations = pair(stride), pair(dilation)
    if isinstance(padding, str):
        paddings = _named_padding(padding, sizes, strides, dilations, plane)
    elif isinstance(padding, int):
        paddings = [[padding, padding]] * 2
    else:
        flat = [int(one) for side in padding for one in (side if isinstance(side, (list, tuple)) else [side])]
        # One for H and W; or before and after H, then W; or the same for all four dimensions.
        shapes = {
            2: lambda: [[one, one] for one in flat],
            4: lambda: [flat[:2], flat[2:]],
            8: lambda: [flat[4:6], flat[6:]],
        }
        if len(flat) not in shapes:
            raise ValueError(f"`padding` expects one number, two, or four, got {padding!r}")
        paddings = shapes[len(flat)]()
    return [[*parts[:2], *parts[2], parts[3]] for parts in zip(sizes, strides, paddings, dilations)]


def _named_padding(
    padding: str, sizes: Sequence[int], strides: list[int], dilations: list[int], plane: Sequence[int]
) -> list[list[int]]:
    if padding.lower() == "valid":
        return [[0, 0], [0, 0]]
    if padding.lower() != "same":
        raise ValueError(f"`padding` expects numbers, `same` or `valid`, got `{padding}`")
    paddings = []
    for size, stride, dilation, length in zip(sizes, strides, dilations, plane):
        reach = dilation * (size - 1) + 1
        if length < 0 and stride != 1:
            raise NotImplementedError(
                "`padding='same'` with a stride, of a size that is known only when the program runs"
            )
        total = reach - 1 if length < 0 else max((-(-length // stride) - 1) * stride + reach - length, 0)
        paddings.append([total // 2, total - total // 2])
    return paddings
