"""PaddlePaddle's arguments that have no effect here, added to functions that do not have them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def unused(value: Any) -> None:
    """Accepts any value of an argument."""


def with_arguments(function: Callable[..., Any], **extra: Any) -> Any:
    """Returns `function` with further arguments after its own, by keyword and by position, which are not passed on.

    Each is given by its default, or by a pair of default and check; a check raises for values that are not supported.

    >>> import inspect
    >>> double = with_arguments(lambda x: 2 * x, name=None)
    >>> double(4, name="twice"), double(4, "twice"), str(inspect.signature(double))
    (8, 8, '(x, name=None)')
    """
    checks = {name: given if isinstance(given, tuple) else (given, unused) for name, given in extra.items()}
    signature = inspect.signature(function)
    own = list(signature.parameters.values())
    positional = [each for each in own if each.kind is each.POSITIONAL_OR_KEYWORD]
    added = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, (default, _) in checks.items()
    ]

    @functools.wraps(function)
    def adapter(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(checks, args[len(positional) :]))
        if len(args) > len(positional) + len(checks):
            raise TypeError(f"`{function.__name__}` takes at most {len(positional) + len(checks)} positional arguments")
        for name in checks.keys() & kwargs.keys():
            given[name] = kwargs.pop(name)
        for name, value in given.items():
            checks[name][1](value)
        return function(*args[: len(positional)], **kwargs)

    adapter.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*positional, *added, *(each for each in own if each not in positional)]
    )
    return adapter
