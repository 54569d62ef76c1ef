"""Scopes: the values of parameters, tables and counters, by name.

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
    """Values by name. Executors with the same scope share them.

    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.global_scope().var("fc_0.w_0").get_tensor().shape()
    [2, 1]
    """

    def __init__(self) -> None:
        self._native = _native.Scope()
        # Whether the newest values of its parameters are on servers.
        self._trained_elsewhere = False

    def var(self, name: str) -> ScopeVariable:
        """Returns the entry of this name, whether it has a value or not."""
        return ScopeVariable(self, name)

    def find_var(self, name: str) -> ScopeVariable | None:
        """Returns the entry of this name, or None if it has no value."""
        known = name in self._native.names() or _program_with_table(name) is not None
        return ScopeVariable(self, name) if known else None

    def names(self) -> list[str]:
        """Returns all names, sorted."""
        return self._native.names()

    def erase(self, names: list[str]) -> None:
        """Removes values."""
        for name in names:
            self._native.erase(name)

    def drop_kids(self) -> None:
        """Does nothing: a scope has no child scopes."""


class ScopeVariable:
    """An entry of a scope.

    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> weights = np.array(static.global_scope().var("fc_0.w_0").get_tensor())
    >>> weights.shape
    (2, 1)
    """

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope, self.name = scope, name

    def get_tensor(self) -> Tensor:
        """Returns a view of its value, to read and to set."""
        return Tensor(self._scope, self.name)

    def rows(self) -> int | None:
        """Returns the number of rows of a sparse table; None for anything else."""
        return self._scope._native.rows(self.name)


class Tensor:
    """A view of a value in a scope, by name. Reading gives the current value; writing changes it.

    >>> scope = Scope()
    >>> tensor = scope.var("x").get_tensor()
    >>> tensor.set(np.zeros((2, 2), "float32"))
    >>> tensor[0] = 7.0
    >>> (tensor + np.ones(2)).tolist(), tensor.shape(), len(tensor)
    ([[8.0, 8.0], [1.0, 1.0]], [2, 2], 2)

    The memory is not shared: training threads write into it, and an array over it would see half a step.
    """

    # Makes NumPy call the operators of the tensor for `array + tensor`.
    __array_priority__ = 1.0

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope, self._name = scope, name
        # The program that knows how many ids the table of this name has, if it is one.
        self._program = _program_with_table(name)

    def _value(self) -> np.ndarray[Any, Any]:
        value = self._scope._native.get(self._name)
        if value is None and not self._scope._trained_elsewhere and self._program is not None:
            value = self._scope._native.table_values(self._program._native, self._name)
        if value is None:
            rows = self._scope._native.rows(self._name)
            what = "has no value in the scope" if rows is None else f"is a sparse table of {rows} rows, not an array"
            raise _native.ProgramError(f"`{self._name}` {what}")
        return value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        value = self._value()
        return value if dtype is None else value.astype(dtype, copy=False)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns a copy of its value."""
        return self._value()

    def __getitem__(self, index: Any) -> Any:
        return self._value()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        array = self._value()
        array[index] = value
        self._scope._native.set(self._name, array)

    def __len__(self) -> int:
        return len(self._value())

    def __repr__(self) -> str:
        return f"<Tensor {self._name}: {self._value()!r}>"

    def __add__(self, other: Any) -> Any:
        return self._value() + np.asarray(other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._value() - np.asarray(other)

    def __rsub__(self, other: Any) -> Any:
        return np.asarray(other) - self._value()

    def __mul__(self, other: Any) -> Any:
        return self._value() * np.asarray(other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._value() / np.asarray(other)

    @property
    def dtype(self) -> Any:
        """The dtype of its elements."""
        return self._value().dtype

    def shape(self) -> list[int]:
        """Returns the sizes of its dimensions."""
        return list(self._value().shape)

    _get_dims = shape

    def set(self, array: Any, place: Any = None) -> None:
        """Replaces its value. An existing value keeps its dimensions and dtype. `place` has no effect."""
        array = np.asarray(array)
        existing = self._scope._native.get(self._name)
        kind = np.dtype("int64" if np.issubdtype(array.dtype, np.integer) else "float32")
        kind = kind if existing is None else existing.dtype
        self._scope._native.set(self._name, np.ascontiguousarray(array, dtype=kind))


def _program_with_table(name: str) -> Any:
    """Returns the default main program if it has a sparse table of this name."""
    from .program import default_main_program

    program = default_main_program()
    return program if program.has_var(name) and program.var(name).kind == "table" else None


_scopes = [Scope()]


def global_scope() -> Scope:
    """Returns the scope that executors use by default.

    >>> with static.scope_guard(static.Scope()) as scope:
    ...     static.global_scope().names()
    []
    """
    return _scopes[-1]


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Makes another scope the global one inside the `with` block.

    Raises:
        TypeError: The argument is not a scope.

    >>> with static.scope_guard(static.Scope()):
    ...     static.global_scope().names()
    []
    """
    if not isinstance(scope, Scope):
        raise TypeError(f"`scope_guard` expects a Scope, got {type(scope).__name__}")
    depth = len(_scopes)
    _scopes.append(scope)
    try:
        yield
    finally:
        del _scopes[depth:]
