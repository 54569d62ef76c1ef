"""Gradients as variables that can be fetched."""

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
    """Adds the gradients of a loss to its program; gives the pairs of parameter and gradient."""
    only = None if parameter_list is None else _names(parameter_list)
    pairs = loss.program._native.append_backward(loss.name, only, _names(list(no_grad_set or [])))
    return [(Variable(loss.program, p), Variable(loss.program, g)) for p, g in pairs]


def gradients(targets: Variable | Sequence[Variable], inputs: Variable | Sequence[Variable]) -> list[Variable]:
    """The gradients of one target by parameters."""
    target = targets if isinstance(targets, Variable) else targets[0]
    wanted = [inputs] if isinstance(inputs, Variable) else list(inputs)
    found = {parameter.name: gradient for parameter, gradient in append_backward(target, wanted)}
    return [found[one.name] for one in wanted]
