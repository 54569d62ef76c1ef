"""Activations: the nonlinear functions between layers. The result has the shape of x [B, ...]."""

from __future__ import annotations

from typing import Any

from ..._deprecated import IGNORED, Deprecated, accepts_deprecated
from ..program import Variable
from ._ops import net_of, unary, variable
from .comparisons import greater_than, where
from .elementwise import multiply, scale
from .shapes import reshape


@accepts_deprecated(name=IGNORED)
def relu(x: Variable) -> Variable:
    """Returns `max(x, 0)`.

    >>> exe.run(fetch_list=[static.nn.relu(static.nn.literal([-1.0, 2.0]))])[0].tolist()
    [0.0, 2.0]
    """
    return unary("relu", x)


@accepts_deprecated(name=IGNORED)
def sigmoid(x: Variable) -> Variable:
    """Returns `1 / (1 + exp(-x))`, which turns a logit into a probability.

    >>> exe.run(fetch_list=[static.nn.sigmoid(static.nn.literal([0.0, 100.0]))])[0].tolist()
    [0.5, 1.0]
    """
    return unary("sigmoid", x)


@accepts_deprecated(name=IGNORED)
def tanh(x: Variable) -> Variable:
    """Returns the hyperbolic tangent of x, between -1 and 1.

    >>> exe.run(fetch_list=[static.nn.tanh(static.nn.literal([0.0, 100.0]))])[0].tolist()
    [0.0, 1.0]
    """
    return unary("tanh", x)


@accepts_deprecated(name=IGNORED)
def softmax(x: Variable, axis: int = -1) -> Variable:
    """Returns `exp(x) / sum(exp(x))` along an axis: probabilities that add up to 1.

    >>> exe.run(fetch_list=[static.nn.softmax(static.nn.literal([[1.0, 1.0]]))])[0].tolist()
    [[0.5, 0.5]]
    """
    return variable(net_of(x).softmax(x.name, axis))


@accepts_deprecated(name=IGNORED)
def leaky_relu(x: Variable, negative_slope: float = 0.01) -> Variable:
    """Returns x where it is above 0, and `negative_slope * x` elsewhere.

    >>> exe.run(fetch_list=[static.nn.leaky_relu(static.nn.literal([-4.0, 2.0]), 0.5)])[0].tolist()
    [-2.0, 2.0]
    """
    return where(greater_than(x, 0.0), x, scale(x, negative_slope))


def check_channels_second(data_format: str) -> None:
    """Raises NotImplementedError for a layout of `prelu` whose channels are not the second dimension."""
    if data_format not in ("NC", "NCL", "NCHW", "NCDHW"):
        raise NotImplementedError(f"`data_format` `{data_format}` of `prelu`: channels are the second dimension")


def _data_format(value: Any) -> dict[str, Any]:
    check_channels_second(value)
    return {}


@accepts_deprecated(
    data_format=Deprecated("leave it out, channels are the second dimension", _data_format), name=IGNORED
)
def prelu(x: Variable, weight: Variable) -> Variable:
    """Returns x where it is above 0, and `weight * x` elsewhere.

    The weight is [1], one number for all elements, or [C], one number per channel of x [B, C, ...].

    >>> x, weight = static.nn.literal([[-4.0, -4.0]]), static.nn.literal([0.5, 0.25])
    >>> exe.run(fetch_list=[static.nn.prelu(x, weight)])[0].tolist()
    [[-2.0, -1.0]]
    """
    if weight.shape != (1,) and x.ndim > 2:
        weight = reshape(weight, [weight.shape[0], *[1] * (x.ndim - 2)])
    return where(greater_than(x, 0.0), x, multiply(x, weight))


@accepts_deprecated(name=IGNORED)
def dropout(x: Variable, p: float = 0.5, mode: str = "upscale_in_train", seed: int | None = None) -> Variable:
    """Sets each element to zero with probability `p` in training.

    Args:
        x: [B, ...] floats.
        p: The probability, from 0 to 1.
        mode: `upscale_in_train` divides the other elements by `1 - p` in training and changes nothing in a program's
            copy for test; `downscale_in_infer` keeps them in training and multiplies by `1 - p` in the copy.
        seed: Drops the same elements in every step, for tests. By default every step drops others.

    Raises:
        ValueError: There is no such mode.

    >>> x = static.data("x", [None, 4])
    >>> y = static.nn.dropout(x, 0.5)
    >>> test = static.default_main_program().clone(for_test=True)
    >>> exe.run(test, feed={"x": np.ones((1, 4))}, fetch_list=[y])[0].tolist()
    [[1.0, 1.0, 1.0, 1.0]]
    """
    if mode not in ("upscale_in_train", "downscale_in_infer", "downgrade_in_infer"):
        raise ValueError(f"`mode` of dropout cannot be `{mode}`: `upscale_in_train` or `downscale_in_infer`")
    return variable(net_of(x).dropout(x.name, float(p), mode == "upscale_in_train", seed))
