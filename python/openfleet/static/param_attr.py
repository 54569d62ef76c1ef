"""How a layer's parameter is named, initialised and trained."""

from __future__ import annotations

import json
from typing import Any

from .initializer import Initializer
from .regularizer import Regularizer


class ParamAttr:
    """How a layer's parameter is named, initialised and trained. What is not said is left to the layer.

    >>> ParamAttr(name="w", learning_rate=0.5).name
    'w'
    """

    def __init__(
        self,
        name: str | None = None,
        initializer: Initializer | None = None,
        learning_rate: float = 1.0,
        regularizer: Regularizer | None = None,
        trainable: bool = True,
        do_model_average: bool = True,
        need_clip: bool = True,
    ) -> None:
        for what, value, kind in (("initializer", initializer, Initializer), ("regularizer", regularizer, Regularizer)):
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"`{what}` of a ParamAttr expects a {kind.__name__}, got {type(value).__name__}")
        if not need_clip:
            raise NotImplementedError("`need_clip=False`: gradients are clipped together or not at all")
        self.name = name
        self.initializer = initializer
        self.learning_rate = float(learning_rate)
        self.regularizer = regularizer
        self.trainable = bool(trainable)

    def to_json(self) -> dict[str, Any]:
        """As the engine reads it."""
        return {
            "name": self.name,
            "initializer": self.initializer and self.initializer.to_json(),
            "learning_rate": self.learning_rate,
            "regularizer": self.regularizer and self.regularizer.to_json(),
            "frozen": not self.trainable,
        }


def attr_json(attr: Any) -> str:
    """A ParamAttr, a name, an initializer, a regularizer, or nothing, as the engine reads it."""
    if attr is None or attr is True:
        attr = ParamAttr()
    elif isinstance(attr, str):
        attr = ParamAttr(name=attr)
    elif isinstance(attr, Initializer):
        attr = ParamAttr(initializer=attr)
    elif isinstance(attr, Regularizer):
        attr = ParamAttr(regularizer=attr)
    elif not isinstance(attr, ParamAttr):
        raise TypeError(f"expected a ParamAttr, got {type(attr).__name__}")
    return json.dumps(attr.to_json())
