"""Recurrent layers over sequences, step by step: T steps, B rows, H elements of a state.

The layers take the products of the inputs with their weights, which are computed for all steps at once (`fc`), and
multiply only the states step by step.
"""

from __future__ import annotations

from ..program import Variable
from ._ops import net_of, variable


def gru(
    gates: Variable,
    weight: Variable,
    bias: Variable,
    first: Variable,
    lengths: Variable | None = None,
    reverse: bool = False,
) -> Variable:
    """Returns the states of a gated recurrent unit after each step.

    With r and z as sigmoids of the gates of the input and of the state, and c = tanh(input_c + r state_c), the state
    becomes z state + (1 - z) c.

    Args:
        gates: [T, B, 3 H]: what the inputs add to the gates r, z and c.
        weight: [3 H, H], for the states.
        bias: [3 H], for the states.
        first: [B, H], the states before the first step.
        lengths: [B] `int64`: a row keeps its state after its length.
        reverse: Whether the last step comes first.

    Returns:
        [T, B, H].

    >>> gates = static.nn.literal([[[0.0, 0.0, 1.0]], [[0.0, 0.0, 1.0]]])
    >>> zeros = static.nn.full([3, 1], 0.0), static.nn.full([3], 0.0), static.nn.full([1, 1], 0.0)
    >>> [round(state, 4) for state in exe.run(fetch_list=[static.nn.gru(gates, *zeros)])[0].ravel().tolist()]
    [0.3808, 0.5712]
    """
    net = net_of(gates, weight, bias, first, *([] if lengths is None else [lengths]))
    given = None if lengths is None else lengths.name
    return variable(net.gru(gates.name, weight.name, bias.name, first.name, given, bool(reverse)))


def lstm(
    gates: Variable,
    weight: Variable,
    bias: Variable,
    first: tuple[Variable, Variable],
    lengths: Variable | None = None,
    reverse: bool = False,
) -> tuple[Variable, Variable]:
    """Returns the states and the cells of a long short-term memory after each step.

    With i, f and o as sigmoids and g as a tanh of the gates, the cell becomes f cell + i g, and the state o tanh(cell).

    Args:
        gates: [T, B, 4 H]: what the inputs add to the gates i, f, g and o.
        weight: [4 H, H], for the states.
        bias: [4 H], for the states.
        first: The states and the cells before the first step, each [B, H].
        lengths: [B] `int64`: a row keeps its state and its cell after its length.
        reverse: Whether the last step comes first.

    Returns:
        Two of [T, B, H].

    >>> gates = static.nn.literal([[[0.0, 0.0, 1.0, 0.0]]])
    >>> weight, bias, zero = static.nn.full([4, 1], 0.0), static.nn.full([4], 0.0), static.nn.full([1, 1], 0.0)
    >>> [round(y.item(), 4) for y in exe.run(fetch_list=static.nn.lstm(gates, weight, bias, (zero, zero)))]
    [0.1817, 0.3808]
    """
    net = net_of(gates, weight, bias, *first, *([] if lengths is None else [lengths]))
    given = None if lengths is None else lengths.name
    names = [first[0].name, first[1].name]
    states, cells = net.lstm(gates.name, weight.name, bias.name, names, given, bool(reverse))
    return variable(states), variable(cells)
