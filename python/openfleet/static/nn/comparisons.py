"""Comparisons, which give `bool` variables, and the layers that use them."""

from __future__ import annotations

from typing import Any

from ..._deprecated import IGNORED, accepts_deprecated
from ..program import Variable
from ._ops import binary, constant_like, net_of, unary, variable


@accepts_deprecated(name=IGNORED)
def equal(x: Any, y: Any) -> Variable:
    """Returns whether x == y, element by element; one of them may be a number.

    >>> exe.run(fetch_list=[static.nn.equal(static.nn.literal([1, 2]), 2)])[0].tolist()
    [False, True]
    """
    return binary("equal", x, y)


@accepts_deprecated(name=IGNORED)
def not_equal(x: Any, y: Any) -> Variable:
    """Returns whether x != y, element by element; one of them may be a number.

    >>> exe.run(fetch_list=[static.nn.not_equal(static.nn.literal([1, 2]), 2)])[0].tolist()
    [True, False]
    """
    return binary("not_equal", x, y)


@accepts_deprecated(name=IGNORED)
def less_than(x: Any, y: Any) -> Variable:
    """Returns whether x < y, element by element; one of them may be a number.

    >>> exe.run(fetch_list=[static.nn.less_than(static.nn.literal([1, 2]), 2)])[0].tolist()
    [True, False]
    """
    return binary("less_than", x, y)


@accepts_deprecated(name=IGNORED)
def less_equal(x: Any, y: Any) -> Variable:
    """Returns whether x <= y, element by element; one of them may be a number.

    >>> exe.run(fetch_list=[static.nn.less_equal(static.nn.literal([1, 2, 3]), 2)])[0].tolist()
    [True, True, False]
    """
    return binary("less_equal", x, y)


@accepts_deprecated(name=IGNORED)
def greater_than(x: Any, y: Any) -> Variable:
    """Returns whether x > y, element by element; one of them may be a number.

    >>> exe.run(fetch_list=[static.nn.greater_than(static.nn.literal([1, 2, 3]), 2)])[0].tolist()
    [False, False, True]
    """
    return binary("greater_than", x, y)


@accepts_deprecated(name=IGNORED)
def greater_equal(x: Any, y: Any) -> Variable:
    """Returns whether x >= y, element by element; one of them may be a number.

    >>> exe.run(fetch_list=[static.nn.greater_equal(static.nn.literal([1, 2, 3]), 2)])[0].tolist()
    [False, True, True]
    """
    return binary("greater_equal", x, y)


@accepts_deprecated(name=IGNORED)
def logical_and(x: Variable, y: Variable) -> Variable:
    """Returns where both `bool` variables are true.

    >>> x, y = static.nn.literal([True, True]), static.nn.literal([True, False])
    >>> exe.run(fetch_list=[static.nn.logical_and(x, y)])[0].tolist()
    [True, False]
    """
    return binary("logical_and", x, y)


@accepts_deprecated(name=IGNORED)
def logical_or(x: Variable, y: Variable) -> Variable:
    """Returns where at least one of two `bool` variables is true.

    >>> x, y = static.nn.literal([False, True]), static.nn.literal([False, False])
    >>> exe.run(fetch_list=[static.nn.logical_or(x, y)])[0].tolist()
    [False, True]
    """
    return binary("logical_or", x, y)


@accepts_deprecated(name=IGNORED)
def logical_not(x: Variable) -> Variable:
    """Returns where a `bool` variable is false.

    >>> exe.run(fetch_list=[static.nn.logical_not(static.nn.literal([True, False]))])[0].tolist()
    [False, True]
    """
    return unary("logical_not", x)


@accepts_deprecated(name=IGNORED)
def where(condition: Variable, x: Any, y: Any) -> Variable:
    """Returns the elements of x where a `bool` condition is true and those of y elsewhere; one may be a number.

    >>> x = static.nn.literal([-1.0, 2.0])
    >>> exe.run(fetch_list=[static.nn.where(static.nn.greater_than(x, 0.0), x, 0.0)])[0].tolist()
    [0.0, 2.0]
    """
    x = x if isinstance(x, Variable) else constant_like(y, x)
    y = y if isinstance(y, Variable) else constant_like(x, y)
    return variable(net_of(condition, x, y).select(condition.name, x.name, y.name))


@accepts_deprecated(name=IGNORED)
def masked_select(x: Variable, mask: Variable) -> Variable:
    """Selects the elements of x where a `bool` mask of the same shape is true.

    How many there are is known only when the program runs: [-1].

    Raises:
        ValueError: The mask has another shape or is not `bool`.

    >>> x = static.nn.literal([1.0, -2.0, 3.0])
    >>> positive = static.nn.masked_select(x, static.nn.greater_than(x, 0.0))
    >>> exe.run(fetch_list=[positive, static.nn.mean(positive)])[0].tolist()
    [1.0, 3.0]
    """
    return binary("masked_select", x, mask)
