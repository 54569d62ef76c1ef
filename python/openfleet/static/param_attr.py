"""`ParamAttr`: how the parameter of a layer is named, initialised and trained."""

from __future__ import annotations

import copy
import json
from typing import Any

from .._deprecated import IGNORED, accepts_deprecated, only
from .initializer import Assign, Initializer
from .regularizer import Regularizer


class ParamAttr:
    """Says how the parameter of a layer is named, initialised and trained. The layer decides what is left out.

    Args:
        name: The name of the parameter. Two layers with the same name share one parameter.
        initializer: Its first values, one of `static.initializer`.
        learning_rate: A factor for the optimizer's learning rate.
        regularizer: Its weight decay, instead of the optimizer's.
        trainable: False keeps the first values.

    Raises:
        TypeError: The initializer or the regularizer is something else.

    >>> attr = static.ParamAttr(name="w", initializer=static.initializer.Constant(1.0), learning_rate=0.5)
    >>> y = static.nn.fc(static.data("x", [None, 4]), size=1, weight_attr=attr)
    >>> static.default_main_program().has_var("w")
    True
    """

    @accepts_deprecated(
        do_model_average=IGNORED,
        need_clip=only(
            True,
            "leave it out, gradients are clipped together or not at all",
            lambda value: NotImplementedError("`need_clip=False`: gradients are clipped together or not at all"),
        ),
    )
    def __init__(
        self,
        name: str | None = None,
        initializer: Initializer | None = None,
        learning_rate: float = 1.0,
        regularizer: Regularizer | None = None,
        trainable: bool = True,
    ) -> None:
        for what, value, kind in (("initializer", initializer, Initializer), ("regularizer", regularizer, Regularizer)):
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"`{what}` of a ParamAttr expects a {kind.__name__}, got {type(value).__name__}")
        self.name = name
        self.initializer = initializer
        self.learning_rate = float(learning_rate)
        self.regularizer = regularizer
        self.trainable = bool(trainable)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON that the engine reads."""
        values = self.initializer.to_json() if isinstance(self.initializer, Assign) else None
        return {
            "name": self.name,
            "initializer": self.initializer.to_json() if self.initializer and values is None else None,
            "values": values,
            "learning_rate": self.learning_rate,
            "regularizer": self.regularizer and self.regularizer.to_json(),
            "frozen": not self.trainable,
        }


def attr_of(attr: Any) -> ParamAttr:
    """Returns a ParamAttr from a ParamAttr, a name, an initializer, a regularizer, or None."""
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
    """Returns a copy with this name and this initializer where it has none."""
    filled = copy.copy(attr_of(attr))
    filled.name = name if filled.name is None else filled.name
    filled.initializer = initializer if filled.initializer is None else filled.initializer
    return filled


def attr_json(attr: Any) -> str:
    """Returns the JSON that the engine reads for the attributes of a parameter."""
    return json.dumps(attr_of(attr).to_json())
