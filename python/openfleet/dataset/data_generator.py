"""Base classes of programs that convert lines to MultiSlot text, for use as a `pipe_command`.

>>> class Words(MultiSlotDataGenerator):
...     def generate_sample(self, line):
...         def rows():
...             for word in ("a", "b"):
...                 yield [("words", [ord(word), 7]), ("label", [1])]
...         return rows
>>> Words().run_from_memory()
2 97 7 1 1
2 98 7 1 1
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Sample = Sequence[tuple[str, Sequence[Any]]]


class DataGenerator:
    """Base class. Override `generate_sample`, and `generate_batch` if a row depends on several lines.

    >>> from openfleet.dataset import MultiSlotDataGenerator
    >>> issubclass(MultiSlotDataGenerator, DataGenerator)
    True
    """

    def __init__(self) -> None:
        self.batch_size_ = 32
        self._names: list[str] | None = None

    def set_batch(self, batch_size: int) -> None:
        """Sets how many rows `generate_batch` receives."""
        self.batch_size_ = batch_size

    def generate_sample(self, line: str | None) -> Callable[[], Iterable[Sample]]:
        """Returns a function that returns the rows of a line. The line is None in `run_from_memory`."""
        raise NotImplementedError("override `generate_sample`: return a function that returns rows of (name, [values])")

    def generate_batch(self, samples: list[Sample]) -> Callable[[], Iterable[Sample]]:
        """Returns a function that returns the rows for several rows; by default the same rows."""
        return lambda: iter(samples)

    def run_from_stdin(self) -> None:
        """Converts each line of standard input to rows on standard output."""
        self._write(row for line in sys.stdin for row in self._rows(line))

    def run_from_memory(self) -> None:
        """Writes the rows of `generate_sample(None)` to standard output."""
        self._write(self._rows(None))

    def _rows(self, line: str | None) -> Iterator[Sample]:
        return (row for row in self.generate_sample(line)() if row is not None)

    def _write(self, rows: Iterable[Sample]) -> None:
        waiting: list[Sample] = []
        for row in rows:
            waiting.append(row)
            if len(waiting) == self.batch_size_:
                self._write_batch(waiting)
                waiting = []
        if waiting:
            self._write_batch(waiting)
        sys.stdout.flush()

    def _write_batch(self, samples: list[Sample]) -> None:
        for row in self.generate_batch(samples)():
            # PaddlePaddle's scripts yield `zip(names, values)`.
            sys.stdout.write(self._gen_str(list(row) if isinstance(row, zip) else row))

    def _gen_str(self, line: Sample) -> str:
        raise NotImplementedError("use MultiSlotDataGenerator or MultiSlotStringDataGenerator")

    def _check_names(self, line: Sample) -> None:
        if not isinstance(line, (list, tuple)):
            raise ValueError(f"a row expects a list of (name, [values]), got {type(line).__name__}")
        names = [name for name, _ in line]
        if self._names is None:
            for name in names:
                if not isinstance(name, str):
                    raise ValueError(f"the name of a slot expects a str, got {type(name).__name__}")
            self._names = names
        elif names != self._names:
            raise ValueError(f"a row has the slots {names}, expected {self._names} as in the first row")


class MultiSlotDataGenerator(DataGenerator):
    """Writes integers and floats, and checks them. A slot may be empty.

    >>> class Clicks(MultiSlotDataGenerator):
    ...     def generate_sample(self, line):
    ...         return lambda: [[("label", [1]), ("user", [7, 8])]]
    >>> Clicks().run_from_memory()
    1 1 2 7 8
    """

    def _gen_str(self, line: Sample) -> str:
        self._check_names(line)
        parts: list[str] = []
        for name, values in line:
            if not isinstance(values, (list, tuple)):
                raise ValueError(f"slot `{name}` expects a list of values, got {type(values).__name__}")
            for value in values:
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise ValueError(f"slot `{name}` expects integers or floats, got {value!r}")
            parts.append(str(len(values)))
            parts.extend(map(str, values))
        return " ".join(parts) + "\n"


class MultiSlotStringDataGenerator(DataGenerator):
    """Writes values that are strings already, without a check.

    >>> class Clicks(MultiSlotStringDataGenerator):
    ...     def generate_sample(self, line):
    ...         return lambda: [[("label", ["1"]), ("user", ["7", "8"])]]
    >>> Clicks().run_from_memory()
    1 1 2 7 8
    """

    def _gen_str(self, line: Sample) -> str:
        return " ".join(" ".join([str(len(values)), *values]) for _, values in line) + "\n"
