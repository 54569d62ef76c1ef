"""Losses. Each gives one number per row, [B, 1], unless its docstring says otherwise; train on their `mean`."""

from __future__ import annotations

from typing import Any

from ..._deprecated import IGNORED, accepts_deprecated
from ..program import Variable
from ._ops import binary, net_of, variable
from .reductions import mean, sum


@accepts_deprecated(name=IGNORED)
def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4) -> Variable:
    """Returns the binary cross entropy of probabilities: `-label log(p + epsilon) - (1 - label) log(1 - p + epsilon)`.

    Args:
        input: Probabilities p [B, 1].
        label: [B, 1] floats, 0 or 1; `cast` turns integer labels into floats.
        epsilon: Keeps the logarithm of 0 finite.

    Returns:
        [B, 1].

    >>> p, label = static.nn.literal([[0.5]]), static.nn.literal([[1.0]])
    >>> round(exe.run(fetch_list=[static.nn.log_loss(p, label)])[0].item(), 4)
    0.6929
    """
    return variable(net_of(input, label).log_loss(input.name, label.name, epsilon))


def binary_cross_entropy(input: Variable, label: Variable, reduction: str = "mean") -> Variable:
    """Returns the binary cross entropy of probabilities, with logarithms not below -100.

    Args:
        input: Probabilities, of any shape.
        label: Floats from 0 to 1 of the same shape.
        reduction: `mean` or `sum` over all elements, [1]; `none` for one loss per element.

    Raises:
        ValueError: There is no such reduction.

    >>> p, label = static.nn.literal([[0.5], [1.0]]), static.nn.literal([[1.0], [1.0]])
    >>> round(float(exe.run(fetch_list=[static.nn.binary_cross_entropy(p, label, "sum")])[0]), 4)
    0.6931
    """
    return reduced(binary("binary_cross_entropy", input, label), reduction)


@accepts_deprecated(name=IGNORED)
def sigmoid_cross_entropy_with_logits(x: Variable, label: Variable) -> Variable:
    """Returns the binary cross entropy of logits with float labels of the same shape, one loss per element.

    It is more precise than `sigmoid` followed by a loss of probabilities.

    >>> x, label = static.nn.literal([[0.0]]), static.nn.literal([[1.0]])
    >>> exe.run(fetch_list=[static.nn.sigmoid_cross_entropy_with_logits(x, label)])[0].round(2).tolist()
    [[0.6899999976158142]]
    """
    return binary("sigmoid_cross_entropy_with_logits", x, label)


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Returns the squared difference of two variables of one shape, one loss per element.

    >>> x, label = static.nn.literal([[1.0]]), static.nn.literal([[3.0]])
    >>> exe.run(fetch_list=[static.nn.square_error_cost(x, label)])[0].tolist()
    [[4.0]]
    """
    return binary("square_error_cost", input, label)


def cross_entropy(input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100) -> Variable:
    """Returns the cross entropy of probabilities over C classes. `softmax_with_cross_entropy` is more precise.

    Args:
        input: Probabilities [..., C], which add up to 1. Those below 1e-20 count as 1e-20.
        label: The class [..., 1] as `int64`, or with `soft_label` its probabilities [..., C].
        soft_label: Whether labels are probabilities.
        ignore_index: A class whose rows have loss 0 and no gradient.

    Returns:
        [..., 1].

    >>> p, label = static.nn.literal([[0.0, 1.0]]), static.nn.literal([[1]])
    >>> abs(exe.run(fetch_list=[static.nn.cross_entropy(p, label)])[0]).tolist()
    [[0.0]]
    """
    return variable(net_of(input, label).cross_entropy(input.name, label.name, soft_label, ignore_index))


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    return_softmax: bool = False,
) -> Any:
    """Returns the cross entropy of logits over C classes.

    Args:
        logits: [..., C].
        label: The class [..., 1] as `int64`, or with `soft_label` its probabilities [..., C].
        soft_label: Whether labels are probabilities.
        ignore_index: A class whose rows have loss 0 and no gradient.
        return_softmax: Whether to return the probabilities too.

    Returns:
        The losses [..., 1]; with `return_softmax` the pair of losses and probabilities [..., C].

    >>> logits, label = static.nn.literal([[5.0, 5.0]]), static.nn.literal([[1]])
    >>> loss, probabilities = static.nn.softmax_with_cross_entropy(logits, label, return_softmax=True)
    >>> exe.run(fetch_list=[probabilities])[0].tolist()
    [[0.5, 0.5]]
    """
    net = net_of(logits, label)
    loss, probabilities = net.softmax_with_cross_entropy(logits.name, label.name, soft_label, ignore_index)
    return (variable(loss), variable(probabilities)) if return_softmax else variable(loss)


def reduced(losses: Variable, reduction: str) -> Variable:
    """Returns the `mean` or `sum` of losses, or with `none` the losses themselves."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"`reduction` cannot be `{reduction}`: `mean`, `sum` or `none`")
    if reduction == "none":
        return losses
    return mean(losses) if reduction == "mean" else sum(losses)
