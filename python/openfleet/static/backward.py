"""Gradients as variables of a program, which can be fetched."""

from __future__ import annotations

from collections.abc import Sequence

from .program import Variable


def _names(variables: Sequence[Variable | str] | None) -> list[str]:
    return [v if isinstance(v, str) else v.name for v in variables or []]


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Sequence[Variable | str] | None = None,
) -> list[tuple[Variable, Variable]]:
    """Adds the gradients of a loss to its program, without updates.

    Args:
        loss: One number, [1].
        parameter_list: The parameters whose gradients are wanted; all by default.
        no_grad_set: Variables that no gradient flows through.

    Returns:
        The pairs of parameter and gradient. A gradient has the shape of its parameter.

    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.sum(static.nn.fc(x, size=1))
    >>> (weight, gradient), _ = static.append_backward(y)
    >>> _ = exe.run(static.default_startup_program())
    >>> exe.run(feed={"x": [[3.0, 4.0]]}, fetch_list=[gradient])[0].tolist()
    [[3.0], [4.0]]
    """
    only = None if parameter_list is None else _names(parameter_list)
    pairs = loss.program._native.append_backward(loss.name, only, _names(list(no_grad_set or [])))
    return [(Variable(loss.program, p), Variable(loss.program, g)) for p, g in pairs]


def gradients(targets: Variable | Sequence[Variable], inputs: Variable | Sequence[Variable]) -> list[Variable]:
    """Returns the gradients of a target, [1], with respect to parameters, in their order.

    >>> y = static.nn.sum(static.nn.fc(static.data("x", [None, 2]), size=1))
    >>> (gradient,) = static.gradients(y, static.default_main_program().var("fc_0.b_0"))
    >>> gradient.shape
    (1,)
    """
    target = targets if isinstance(targets, Variable) else targets[0]
    wanted = [inputs] if isinstance(inputs, Variable) else list(inputs)
    found = {parameter.name: gradient for parameter, gradient in append_backward(target, wanted)}
    return [found[one.name] for one in wanted]
