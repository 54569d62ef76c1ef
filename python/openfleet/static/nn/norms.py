"""Normalisation."""

from __future__ import annotations

from typing import Any

from ..._deprecated import IGNORED, Deprecated, accepts_deprecated
from ..param_attr import attr_json
from ..program import Variable
from ._ops import activated, net_of, variable


@accepts_deprecated(
    "input act is_test momentum epsilon param_attr bias_attr data_layout in_place name moving_mean_name "
    "moving_variance_name do_model_average_for_mean_and_var use_global_stats",
    is_test=Deprecated("write `use_global_stats=True`", lambda value: {"use_global_stats": True} if value else {}),
    in_place=IGNORED,
    name=IGNORED,
    do_model_average_for_mean_and_var=IGNORED,
)
def batch_norm(
    input: Variable,
    act: str | None = None,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    use_global_stats: bool = False,
) -> Variable:
    """Normalises every channel to mean 0 and variance 1 over the batch, then scales and shifts it.

    Training uses the statistics of the batch and keeps moving averages of them. A program's copy `clone(for_test=True)`
    uses the moving averages.

    Args:
        input: [B, C] or [B, C, ...] floats.
        act: An activation, as for `fc`.
        momentum: The share of the old moving average in the new one.
        epsilon: Added to the variance.
        param_attr: How the scale [C] is named, initialised and trained.
        bias_attr: The same for the shift [C].
        data_layout: `NCHW` where the channels are the second dimension, `NHWC` where they are the last.
        moving_mean_name: The name of the moving mean [C]; a unique one by default.
        moving_variance_name: The name of the moving variance [C]; a unique one by default.
        use_global_stats: Whether training uses the moving averages too, and does not change them.

    Returns:
        The shape of the input.

    >>> x = static.data("x", [None, 4])
    >>> static.nn.batch_norm(x, act="relu").shape
    (-1, 4)
    """
    attrs = attr_json(param_attr), attr_json(bias_attr)
    names = moving_mean_name, moving_variance_name
    net = net_of(input)
    y = net.batch_norm(input.name, momentum, epsilon, *attrs, data_layout == "NHWC", *names, use_global_stats)
    return activated(variable(y), act)


@accepts_deprecated(name=IGNORED)
def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
) -> Variable:
    """Normalises every row to mean 0 and variance 1 over its own elements, then scales and shifts it.

    Args:
        input: [B, ...] floats.
        scale: Whether the layer has a trained scale, one number per element of a row.
        shift: Whether the layer has a trained shift.
        begin_norm_axis: The first of the axes that make up a row.
        epsilon: Added to the variance.
        param_attr: How the scale is named, initialised and trained.
        bias_attr: The same for the shift.
        act: An activation, as for `fc`.

    Returns:
        The shape of the input.

    >>> x = static.nn.literal([[1.0, 3.0]])
    >>> exe.run(fetch_list=[static.nn.layer_norm(x, scale=False, shift=False)])[0].round(3).tolist()
    [[-1.0, 1.0]]
    """
    scaling, shifting = attr_json(param_attr) if scale else None, attr_json(bias_attr) if shift else None
    y = net_of(input).layer_norm(input.name, begin_norm_axis, epsilon, scaling, shifting)
    return activated(variable(y), act)


@accepts_deprecated(name=IGNORED)
def l2_normalize(x: Variable, axis: int = -1, epsilon: float = 1e-12) -> Variable:
    """Scales the vectors along an axis to Euclidean length 1; `epsilon` is added to the squared length.

    >>> x = static.nn.literal([[3.0, 4.0]])
    >>> exe.run(fetch_list=[static.nn.l2_normalize(x)])[0].round(3).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    return variable(net_of(x).l2_normalize(x.name, axis, epsilon))
