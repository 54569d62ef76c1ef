"""`paddle.nn.initializer`: first values of parameters."""

from __future__ import annotations

from typing import Any

from openfleet import compat
from openfleet.static import initializer as _initializer
from openfleet.static.initializer import Constant, Initializer

from .._parameters import Uniform, XavierNormal, XavierUniform


class Assign(_initializer.Assign):
    """Starts a parameter with given values."""

    def __init__(self, value: Any, name: str | None = None) -> None:
        super().__init__(value)


class Normal(_initializer.Normal):
    """Normal with a mean and a standard deviation."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: str | None = None) -> None:
        super().__init__(mean, std)


class TruncatedNormal(_initializer.TruncatedNormal):
    """Normal, within two standard deviations of the mean."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: str | None = None) -> None:
        super().__init__(mean, std)


def _relu_only(negative_slope: float, nonlinearity: str) -> None:
    if negative_slope != 0.0 or nonlinearity != "relu":
        raise NotImplementedError("`negative_slope` and `nonlinearity` of a Kaiming initializer: there is `relu`")


class KaimingUniform(_initializer.KaimingUniform):
    """He et al. 2015, uniform."""

    def __init__(self, fan_in: float | None = None, negative_slope: float = 0.0, nonlinearity: str = "relu") -> None:
        _relu_only(negative_slope, nonlinearity)
        super().__init__(fan_in)


class KaimingNormal(_initializer.KaimingNormal):
    """He et al. 2015, normal."""

    def __init__(self, fan_in: float | None = None, negative_slope: float = 0.0, nonlinearity: str = "relu") -> None:
        _relu_only(negative_slope, nonlinearity)
        super().__init__(fan_in)


__all__ = [name for name in dir() if name[0].isupper()]
__getattr__ = compat.absent(__name__, __all__)
