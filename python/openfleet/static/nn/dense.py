"""Dense layers: products with a parameter or with another variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._deprecated import IGNORED, accepts_deprecated
from ..param_attr import attr_json
from ..program import Variable
from ._ops import FUSED, activated, binary, net_of, variable
from .elementwise import add_n


def fc(
    x: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    weight_attr: Any = None,
    bias_attr: Any = None,
    activation: str | None = None,
    name: str | None = None,
) -> Variable:
    """Adds a fully connected layer: `activation(x weight + bias)`.

    Args:
        x: [B, ...] floats, or several of them: each has a weight of its own, and the products are added.
        size: How many outputs N the layer has.
        num_flatten_dims: How many leading dimensions are rows. The others are flattened into the K inputs of a row.
        weight_attr: How the weight [K, N] is named, initialised and trained; a list where x is a list.
        bias_attr: The same for the bias [N]; `False` for a layer without a bias.
        activation: `relu`, `sigmoid`, `tanh`, `softmax`, `exp`, `sqrt`, `square`, `abs`, `log` or None.
        name: First part of the parameters' names; `fc_N` by default.

    Returns:
        [B, N]; with `num_flatten_dims=d` the first d dimensions of x, then N.

    Raises:
        ValueError: There is no such activation.

    >>> x = static.data("x", [None, 4])
    >>> static.nn.fc(x, size=8, activation="relu").shape
    (-1, 8)
    """
    if not isinstance(x, Variable):
        attrs = weight_attr if isinstance(weight_attr, (list, tuple)) else [weight_attr] * len(x)
        parts = [fc(one, size, num_flatten_dims, attr, False) for one, attr in zip(x[:-1], attrs)]
        parts.append(fc(x[-1], size, num_flatten_dims, attrs[-1], bias_attr, name=name))
        return activated(add_n(parts), activation)
    if num_flatten_dims < 0:
        num_flatten_dims += x.ndim
    fused = activation if activation in FUSED else "linear"
    bias = None if bias_attr is False else attr_json(bias_attr)
    net = net_of(x)
    y = variable(net.fc(x.name, int(size), str(fused), attr_json(weight_attr), bias, num_flatten_dims, name))
    return y if activation in FUSED else activated(y, activation)


@accepts_deprecated(name=IGNORED)
def matmul(x: Variable, y: Variable, transpose_x: bool = False, transpose_y: bool = False) -> Variable:
    """Returns the matrix product of x [..., M, K] and y [..., K, N], as [..., M, N].

    Leading dimensions are a batch of matrices. `transpose_x` and `transpose_y` exchange the last two dimensions first.

    >>> x = static.nn.literal([[1.0, 2.0], [3.0, 4.0]])
    >>> exe.run(fetch_list=[static.nn.matmul(x, x, transpose_y=True)])[0].tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    """
    return variable(net_of(x, y).matmul(x.name, y.name, transpose_x, transpose_y, 1.0))


@accepts_deprecated(name=IGNORED)
def bmm(x: Variable, y: Variable) -> Variable:
    """Returns one matrix product per row of the batch: [B, M, K] by [B, K, N] is [B, M, N].

    >>> x = static.data("x", [None, 2, 3])
    >>> static.nn.bmm(x, static.nn.transpose(x, [0, 2, 1])).shape
    (-1, 2, 2)
    """
    return binary("bmm", x, y)
