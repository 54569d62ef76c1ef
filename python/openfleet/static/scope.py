"""Values by name: parameters, tables, counters.

>>> import numpy as np
>>> scope = Scope()
>>> scope.var("x").get_tensor().set(np.zeros(3, "float32"))
>>> np.array(scope.find_var("x").get_tensor()).tolist()
[0.0, 0.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import _native


class Scope:
    """Values by name, shared by executors."""

    def __init__(self) -> None:
        self._native = _native.Scope()
        # Whether servers have the newer values of its parameters.
        self._trained_elsewhere = False

    def var(self, name: str) -> ScopeVariable:
        """The place of a value, whether there is one or not."""
        return ScopeVariable(self, name)

    def find_var(self, name: str) -> ScopeVariable | None:
        """The place of a value, if there is one."""
        return ScopeVariable(self, name) if name in self._native.names() else None

    def names(self) -> list[str]:
        """All names, sorted."""
        return self._native.names()

    def erase(self, names: list[str]) -> None:
        """Forgets values."""
        for name in names:
            self._native.erase(name)

    def drop_kids(self) -> None:
        """Nothing: a scope has no scopes inside it."""


class ScopeVariable:
    """The place of a value in a scope."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope, self.name = scope, name

    def get_tensor(self) -> Tensor:
        """Its value, to read and to set."""
        return Tensor(self._scope, self.name)

    def rows(self) -> int | None:
        """How many rows a sparse table has; None for anything else."""
        return self._scope._native.rows(self.name)


class Tensor:
    """A value in a scope: `numpy.array(tensor)` reads it, `set` replaces it."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope, self._name = scope, name

    def _value(self) -> np.ndarray[Any, Any]:
        value = self._scope._native.get(self._name)
        if value is None:
            rows = self._scope._native.rows(self._name)
            what = "has no value in the scope" if rows is None else f"is a sparse table of {rows} rows, not an array"
            raise _native.ProgramError(f"`{self._name}` {what}")
        return value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        value = self._value()
        return value if dtype is None else value.astype(dtype, copy=False)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of its value."""
        return self._value()

    def shape(self) -> list[int]:
        """Its dimensions."""
        return list(self._value().shape)

    _get_dims = shape

    def set(self, array: Any, place: Any = None) -> None:
        """Replaces its value; an existing one keeps its dimensions and its kind."""
        array = np.asarray(array)
        existing = self._scope._native.get(self._name)
        kind = np.dtype("int64" if np.issubdtype(array.dtype, np.integer) else "float32")
        kind = kind if existing is None else existing.dtype
        self._scope._native.set(self._name, np.ascontiguousarray(array, dtype=kind))


_scopes = [Scope()]


def global_scope() -> Scope:
    """The scope that executors use."""
    return _scopes[-1]


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Executors use another scope as long as it lasts."""
    if not isinstance(scope, Scope):
        raise TypeError(f"`scope_guard` expects a Scope, got {type(scope).__name__}")
    depth = len(_scopes)
    _scopes.append(scope)
    try:
        yield
    finally:
        del _scopes[depth:]
