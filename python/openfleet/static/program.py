"""Programs: static graphs of variables with shapes, ops in order, and parameters with initializers.

Layers are added to the default programs, or to those of a `program_guard`. Variables are identified by name, so a
variable of a program can be fetched from a copy of the program too.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from .. import _native


class Program:
    """A static graph: variables, and ops in the order in which they run. Values are in a `Scope`.

    >>> program = Program()
    >>> program.random_seed = 7
    >>> program.clone(for_test=True).random_seed
    7
    """

    def __init__(self) -> None:
        self._native = _native.Program()

    @classmethod
    def _of(cls, native: _native.Program) -> Program:
        program = cls.__new__(cls)
        program._native = native
        return program

    @property
    def random_seed(self) -> int:
        """The seed of every random choice of this program. Equal seeds give equal first values."""
        return self._native.seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"`random_seed` expects an int, got {type(seed).__name__}")
        if seed < 0:
            raise ValueError(f"`random_seed` expects a number not below 0, got {seed}")
        self._native.seed = seed

    def clone(self, for_test: bool = False) -> Program:
        """Returns a copy, which shares its parameters by name.

        With `for_test` the copy has no gradients and no updates, dropout keeps all elements, and batch normalisation
        uses its moving averages. Make it before or after `minimize`.

        >>> y = static.nn.dropout(static.data("x", [None, 2]), 0.5)
        >>> test = static.default_main_program().clone(for_test=True)
        >>> exe.run(test, feed={"x": [[1.0, 2.0]]}, fetch_list=[y])[0].tolist()
        [[1.0, 2.0]]
        """
        return Program._of(self._native.clone(for_test))

    def global_block(self) -> Program:
        """Returns the program itself: a program has one block."""
        return self

    def var(self, name: str) -> Variable:
        """Returns the variable with this name. Raises ValueError if there is none."""
        self._native.variable(name)
        return Variable(self, name)

    def has_var(self, name: str) -> bool:
        """Returns whether there is a variable with this name."""
        return name in self._native.names()

    def list_vars(self) -> list[Variable]:
        """Returns all variables, in order of creation."""
        return [Variable(self, name) for name in self._native.names()]

    def all_parameters(self) -> list[Variable]:
        """Returns the dense parameters and the sparse tables."""
        return [v for v in self.list_vars() if v.kind in ("parameter", "table")]

    @property
    def ops(self) -> list[Operation]:
        """The ops in order."""
        return [Operation(*parts) for parts in self._native.nodes()]

    def to_string(self, throw_on_error: bool = True, with_details: bool = False) -> str:
        """Returns the program as text, one line per op. The arguments have no effect."""
        lines = [f"{', '.join(outputs)} = {op}({', '.join(inputs)})" for op, inputs, outputs in self.ops]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_string()

    def __repr__(self) -> str:
        return f"<Program of {len(self._native.names())} variables and {len(self.ops)} ops>"


class Operation(NamedTuple):
    """One op of a program, with the names of the variables that it reads and writes.

    >>> _ = static.data("x", [None, 4]) * 2.0
    >>> static.default_main_program().ops[-1].type
    'scale'
    """

    type: str
    input_arg_names: list[str]
    output_arg_names: list[str]


class Variable:
    """A value of a program, with a name, a shape and a dtype. Operators add layers:

    >>> x = static.data("x", [None, 4])
    >>> y = (x * 2.0 - 1.0) / (x + 3.0)
    >>> y.shape, y.dtype
    ((-1, 4), 'float32')
    """

    def __init__(self, program: Program, name: str) -> None:
        self.program = program
        self.name = name

    def _info(self) -> tuple[list[int], str, str, bool, bool]:
        return self.program._native.variable(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its dimensions; -1 depends on the batch size."""
        return tuple(self._info()[0])

    @property
    def dtype(self) -> str:
        """`float32`, `int64` or `bool`."""
        return self._info()[1]

    @property
    def kind(self) -> str:
        """`data`, `temporary`, `parameter`, `table`, `state` or `gradient`."""
        return self._info()[2]

    @property
    def lod_level(self) -> int:
        """1 for a slot, whose rows have any number of ids; otherwise 0."""
        return int(self._info()[3])

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def persistable(self) -> bool:
        """Whether the scope keeps its value between steps: true for parameters, tables and states."""
        return self.kind in ("parameter", "table", "state")

    @property
    def stop_gradient(self) -> bool:
        """Whether no gradient flows into it. It can be set to True, but not back to False."""
        return self._info()[4]

    @stop_gradient.setter
    def stop_gradient(self, stop: bool) -> None:
        if stop and not self.stop_gradient:
            _net_of(self).stop_gradient(self.name)
        elif not stop and self.stop_gradient:
            raise ValueError(f"`stop_gradient` of `{self.name}` is already True and cannot be set to False")

    def astype(self, dtype: Any) -> Variable:
        """Returns the elements converted to another dtype, as `nn.cast` does."""
        from . import nn

        return nn.cast(self, dtype)

    def __repr__(self) -> str:
        return f"<Variable {self.name}: {list(self.shape)} {self.dtype}>"

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(f"`{self.name}` has a value only while its program runs: use `static.nn.where`")

    def __neg__(self) -> Variable:
        return _nn().scale(self, scale=-1.0)

    def __add__(self, other: Any) -> Variable:
        return _nn().scale(self, bias=other) if _is_float_op(self, other) else _nn().add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Variable:
        return _nn().scale(self, bias=-other) if _is_float_op(self, other) else _nn().subtract(self, other)

    def __rsub__(self, other: Any) -> Variable:
        if _is_float_op(self, other):
            return _nn().scale(self, scale=-1.0, bias=other)
        return _nn().subtract(other, self)

    def __mul__(self, other: Any) -> Variable:
        return _nn().scale(self, scale=other) if _is_float_op(self, other) else _nn().multiply(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Variable:
        if _is_float_op(self, other) and other != 0:
            return _nn().scale(self, scale=1.0 / other)
        return _nn().divide(self, other)

    def __rtruediv__(self, other: Any) -> Variable:
        return _nn().divide(other, self)

    def __pow__(self, other: Any) -> Variable:
        return _nn().pow(self, other)

    def __rpow__(self, other: Any) -> Variable:
        if not isinstance(other, (int, float)) or other <= 0:
            raise TypeError(f"`number ** variable` expects a number above 0, got {other!r}")
        return _nn().exp(_nn().scale(_nn().cast(self, "float32"), scale=math.log(other)))

    def __and__(self, other: Any) -> Variable:
        return _nn().logical_and(self, other)

    def __or__(self, other: Any) -> Variable:
        return _nn().logical_or(self, other)

    def __invert__(self) -> Variable:
        return _nn().logical_not(self)

    def __rmatmul__(self, other: Any) -> Variable:
        return _nn().matmul(other, self)

    def __matmul__(self, other: Any) -> Variable:
        return _nn().matmul(self, other)

    def __lt__(self, other: Any) -> Variable:
        return _nn().less_than(self, other)

    def __le__(self, other: Any) -> Variable:
        return _nn().less_equal(self, other)

    def __gt__(self, other: Any) -> Variable:
        return _nn().greater_than(self, other)

    def __ge__(self, other: Any) -> Variable:
        return _nn().greater_equal(self, other)

    def __eq__(self, other: Any) -> Variable:  # type: ignore[override]
        return _nn().equal(self, other)

    def __ne__(self, other: Any) -> Variable:  # type: ignore[override]
        return _nn().not_equal(self, other)

    def __getitem__(self, index: Any) -> Variable:
        return _nn().shapes.getitem(self, index)

    def __iter__(self) -> Iterator[Variable]:
        # Without this, Python would iterate over `__getitem__` without an end.
        raise TypeError(f"`{self.name}` cannot be iterated over: use `static.nn.split`")


def default_main_program() -> Program:
    """Returns the program that layers are added to.

    >>> x = static.data("x", [None, 2])
    >>> x.program is static.default_main_program()
    True
    """
    return _stack[-1].main


def default_startup_program() -> Program:
    """Returns the program that gives parameters their first values. Run it once before training.

    >>> _ = static.nn.fc(static.data("x", [None, 2]), size=1)
    >>> exe.run(static.default_startup_program())
    []
    """
    return _stack[-1].startup


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Adds layers to other programs inside the `with` block.

    Raises:
        TypeError: An argument is not a program.

    >>> main, startup = static.Program(), static.Program()
    >>> with static.program_guard(main, startup):
    ...     x = static.data("x", [None, 2])
    >>> main.has_var("x")
    True
    """
    for program in (main_program, startup_program):
        if program is not None and not isinstance(program, Program):
            raise TypeError(f"`program_guard` expects a Program, got {type(program).__name__}")
    startup = default_startup_program() if startup_program is None else startup_program
    with _pushed(_Net(_stack[-1].native.with_programs(main_program._native, startup._native), main_program, startup)):
        yield


class _Net:
    """The programs that layers are added to, and the generator of their names."""

    def __init__(self, native: _native.Net, main: Program, startup: Program) -> None:
        self.native, self.main, self.startup = native, main, startup


@contextmanager
def _pushed(net: _Net) -> Iterator[None]:
    depth = len(_stack)
    _stack.append(net)
    try:
        yield
    finally:
        del _stack[depth:]


def _first() -> _Net:
    main, startup = Program(), Program()
    return _Net(_native.Net(main._native, startup._native), main, startup)


_stack: list[_Net] = [_first()]


def _net() -> _Net:
    return _stack[-1]


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _line_of_script() -> str:
    """Returns the file and line outside this package that adds a layer."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def not_a_variable(value: Any) -> TypeError:
    """Returns the error for an input of a layer that is not a variable. `openfleet.compat` replaces it."""
    return TypeError(f"a layer expects a Variable, got {type(value).__name__}")


def _net_of(*variables: Any) -> _native.Net:
    """Returns the native net that a layer on these variables is added to. Raises for variables of another program."""
    net = _stack[-1]
    net.native.set_line(_line_of_script())
    for variable in variables:
        if not isinstance(variable, Variable):
            raise not_a_variable(variable)
        if variable.program._native is not net.main._native:
            raise ValueError(
                f"`{variable.name}` is a variable of another program\n\n"
                "hint: add layers inside the `program_guard` of the program that the variable belongs to"
            )
    return net.native


def _nn() -> ModuleType:
    # Imported late: layers are built on this module.
    from . import nn

    return nn


def _is_float_op(variable: Variable, other: Any) -> bool:
    """Returns whether an operation with a plain number can be one `scale` op."""
    return isinstance(other, (int, float)) and not isinstance(other, bool) and variable.dtype == "float32"
