"""Admission rules: which ids of a sparse table get a row.

An id without a row reads as zeros, and its gradients are dropped.

>>> CountFilterEntry(5).to_json()["admission"]
{'count': 5}
"""

from __future__ import annotations

from typing import Any


class EntryAttr:
    """Base class: which ids get a row, and what a row stores beside its weights.

    >>> isinstance(static.CountFilterEntry(5), EntryAttr)
    True
    """

    def __init__(self, admission: Any, accessor: Any = "plain", counts: tuple[str, str] | None = None) -> None:
        self._admission, self._accessor, self._counts = admission, accessor, counts

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON that the engine reads."""
        return {"admission": self._admission, "accessor": self._accessor, "capacity": None, "counts": self._counts}


class CountFilterEntry(EntryAttr):
    """Admits an id once it has been seen `count_filter` times in training.

    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> x = static.nn.sparse_embedding(user, size=[0, 8], entry=static.CountFilterEntry(5))

    Raises:
        ValueError: `count_filter` is not an int, or is negative.
    """

    def __init__(self, count_filter: int) -> None:
        if isinstance(count_filter, bool) or not isinstance(count_filter, int):
            raise ValueError(f"`count_filter` expects an int, got {type(count_filter).__name__}")
        if count_filter < 0:
            raise ValueError(f"`count_filter` expects a number not below 0, got {count_filter}")
        self.count_filter = count_filter
        super().__init__({"count": count_filter})


class ProbabilityEntry(EntryAttr):
    """Admits an id with this probability, drawn once per id.

    Raises:
        ValueError: `probability` is not a float between 0 and 1.

    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> x = static.nn.sparse_embedding(user, size=[0, 8], entry=static.ProbabilityEntry(0.5))
    """

    def __init__(self, probability: float) -> None:
        if not isinstance(probability, float):
            raise ValueError(f"`probability` expects a float, got {type(probability).__name__}")
        if not 0 < probability < 1:
            raise ValueError(f"`probability` expects a number between 0 and 1, got {probability}")
        self.probability = probability
        super().__init__({"probability": probability})


class ShowClickEntry(EntryAttr):
    """Admits all ids, and counts per row how often its id was shown and clicked. `fleet.shrink` decides by these
    counts.

    `show_name` and `click_name` name data variables with one number per row of the batch. In geo mode workers count on
    their own copies.

    Raises:
        ValueError: A name is not a string.

    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> show, click = static.data("show", [None, 1]), static.data("click", [None, 1])
    >>> x = static.nn.sparse_embedding(user, size=[0, 8], entry=static.ShowClickEntry("show", "click"))
    """

    def __init__(self, show_name: str, click_name: str) -> None:
        for what, value in (("show_name", show_name), ("click_name", click_name)):
            if not isinstance(value, str):
                raise ValueError(f"`{what}` expects the name of a variable, got {type(value).__name__}")
        self.show_name, self.click_name = show_name, click_name
        super().__init__("all", {"ctr": {}}, (show_name, click_name))
