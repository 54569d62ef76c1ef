"""`ParamAttr`, clipping and initializers with PaddlePaddle's arguments."""

from __future__ import annotations

from typing import Any

from openfleet import static as _static
from openfleet.static import clip as _clip
from openfleet.static import initializer as _initializer


class ParamAttr(_static.ParamAttr):
    """Says how the parameter of a layer is named, initialised and trained."""

    def __init__(
        self,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        need_clip: bool = True,
    ) -> None:
        super().__init__(name, initializer, learning_rate, regularizer, trainable)
        if not need_clip:
            raise NotImplementedError("`need_clip=False`: gradients are clipped together or not at all")


class ClipGradByGlobalNorm(_clip.ClipGradByGlobalNorm):
    """Scales all gradients of a step down to a common norm."""

    def __init__(self, clip_norm: float, group_name: str = "default_group") -> None:
        super().__init__(clip_norm)


class Uniform(_initializer.Uniform):
    """Draws uniformly from `[low, high)`."""

    def __init__(self, low: float = -1.0, high: float = 1.0, name: str | None = None) -> None:
        super().__init__(low, high)


class XavierUniform(_initializer.XavierUniform):
    """Draws uniformly, as Glorot and Bengio 2010."""

    def __init__(self, fan_in: float | None = None, fan_out: float | None = None, name: str | None = None) -> None:
        super().__init__(fan_in, fan_out)


class XavierNormal(_initializer.XavierNormal):
    """Draws from a normal distribution, as Glorot and Bengio 2010."""

    def __init__(self, fan_in: float | None = None, fan_out: float | None = None, name: str | None = None) -> None:
        super().__init__(fan_in, fan_out)
