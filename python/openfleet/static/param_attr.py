"""How a layer's parameter is named, initialised and trained."""

from __future__ import annotations

import copy
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


def attr_of(attr: Any) -> ParamAttr:
    """A ParamAttr, a name, an initializer, a regularizer, or nothing, as a ParamAttr."""
    if attr is None or attr is True:
        return ParamAttr()
    if isinstance(attr, str):
        return ParamAttr(name=attr)
    if isinstance(attr, Initializer):
        return ParamAttr(initializer=attr)
    if isinstance(attr, Regularizer):
        return ParamAttr(regularizer=attr)
    if not isinstance(attr, ParamAttr):
        raise TypeError(f"expected a ParamAttr, got {type(attr).__name__}")
    return attr


def with_defaults(attr: Any, name: str | None = None, initializer: Initializer | None = None) -> ParamAttr:
    """A ParamAttr with a name and an initializer where it has none."""
    filled = copy.copy(attr_of(attr))
    filled.name = name if filled.name is None else filled.name
    filled.initializer = initializer if filled.initializer is None else filled.initializer
    return filled


def attr_json(attr: Any) -> str:
    """What is written of a parameter, as the engine reads it."""
    return json.dumps(attr_of(attr).to_json())
