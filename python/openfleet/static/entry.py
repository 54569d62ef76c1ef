"""Rules of admission: which ids of a sparse table get a row of their own.

An id without one reads as zeros, and what it would learn is dropped.

>>> CountFilterEntry(5).to_json()["admission"]
{'count': 5}
"""

from __future__ import annotations

from typing import Any


class EntryAttr:
    """Which ids get a row, and what a row keeps beside its weights."""

    def __init__(self, admission: Any, accessor: Any = "plain", counts: tuple[str, str] | None = None) -> None:
        self._admission, self._accessor, self._counts = admission, accessor, counts

    def to_json(self) -> dict[str, Any]:
        """As the engine reads it."""
        return {"admission": self._admission, "accessor": self._accessor, "capacity": None, "counts": self._counts}


class CountFilterEntry(EntryAttr):
    """An id gets a row when it has been seen `count_filter` times in training."""

    def __init__(self, count_filter: int) -> None:
        if isinstance(count_filter, bool) or not isinstance(count_filter, int):
            raise ValueError(f"`count_filter` expects an int, got {type(count_filter).__name__}")
        if count_filter < 0:
            raise ValueError(f"`count_filter` expects a number not below 0, got {count_filter}")
        self.count_filter = count_filter
        super().__init__({"count": count_filter})


class ProbabilityEntry(EntryAttr):
    """An id gets a row with this probability, drawn once for each id."""

    def __init__(self, probability: float) -> None:
        if not isinstance(probability, float):
            raise ValueError(f"`probability` expects a float, got {type(probability).__name__}")
        if not 0 < probability < 1:
            raise ValueError(f"`probability` expects a number between 0 and 1, got {probability}")
        self.probability = probability
        super().__init__({"probability": probability})


class ShowClickEntry(EntryAttr):
    """Rows count how often their id was shown and clicked, which decides what `shrink` keeps.

    `show_name` and `click_name` are data variables, one number a row. In geo mode workers count on copies of their own.
    """

    def __init__(self, show_name: str, click_name: str) -> None:
        for what, value in (("show_name", show_name), ("click_name", click_name)):
            if not isinstance(value, str):
                raise ValueError(f"`{what}` expects the name of a variable, got {type(value).__name__}")
        self.show_name, self.click_name = show_name, click_name
        super().__init__("all", {"ctr": {}}, (show_name, click_name))
