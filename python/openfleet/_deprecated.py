"""Arguments that are accepted for one more release.

`openfleet.static` and `openfleet.fleet` used to take PaddlePaddle's arguments as well: arguments without effect, or a
second spelling of another argument. They belong to `openfleet.compat`. Scripts that still pass them here get a
`DeprecationWarning` that says what to write instead; `help()` shows the signature without them.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def _drop(value: Any) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Deprecated:
    """One deprecated argument: what to write instead, and the current arguments that stand for its value.

    `translate` raises where a value was never supported.
    """

    instead: str
    translate: Callable[[Any], Mapping[str, Any]] = _drop


IGNORED = Deprecated("leave it out, it has no effect")


def only(default: Any, instead: str, error: Callable[[Any], Exception]) -> Deprecated:
    """Returns a deprecated argument with one supported value; any other value raises what `error(value)` returns."""

    def check(value: Any) -> Mapping[str, Any]:
        if value is not default and value != default:
            raise error(value)
        return {}

    return Deprecated(instead, check)


def accepts_deprecated(order: str = "", /, **deprecated: Deprecated) -> Callable[[F], F]:
    """Makes a function accept deprecated arguments, by keyword and by position.

    `order` lists the positional arguments of the old signature, separated by blanks. Without it the deprecated
    arguments come after the current ones. A deprecated argument in the middle requires that the current arguments after
    it are keyword-only, so that a call by position has one meaning. A deprecated argument named `kwargs` stands for
    every unknown keyword.

    >>> import warnings
    >>> @accepts_deprecated(name=IGNORED)
    ... def double(x):
    ...     return 2 * x
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     double(4, name="twice")
    8
    >>> str(caught[0].message)
    '`name` of `double` is deprecated: leave it out, it has no effect'
    """

    def decorate(function: F) -> F:
        parameters = inspect.signature(function).parameters.values()
        known = {each.name for each in parameters}
        current = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        names = order.split() or [*current, *deprecated]
        title = function.__qualname__.replace(".__init__", "")

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            old = kwargs.keys() - known if "kwargs" in deprecated else kwargs.keys() & deprecated.keys()
            is_current = len(args) <= len(current) and not old
            # Too many arguments, or one given twice: the function itself raises the usual TypeError.
            if is_current or len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
                return function(*args, **kwargs)
            given = {**dict(zip(names, args)), **kwargs}
            for name in [name for name in given if name not in known and (name in deprecated or name in old)]:
                argument, value = deprecated.get(name, IGNORED), given.pop(name)
                message = f"`{name}` of `{title}` is deprecated: {argument.instead}"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                given.update(argument.translate(value))
            return function(**given)

        return wrapper  # type: ignore[return-value]

    return decorate
