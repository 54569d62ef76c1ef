"""First values of parameters and rows.

>>> Uniform(-0.1, 0.1).to_json()
{'uniform': {'low': -0.1, 'high': 0.1}}
"""

from __future__ import annotations

from typing import Any


class Initializer:
    """How first values are drawn."""

    def __init__(self, json: Any) -> None:
        self._json = json

    def to_json(self) -> Any:
        """As the engine reads it."""
        return self._json

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._json})"


class Constant(Initializer):
    """One number everywhere."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__({"constant": float(value)})


class Uniform(Initializer):
    """Uniform in `[low, high)`."""

    def __init__(self, low: float = -1.0, high: float = 1.0, name: str | None = None) -> None:
        super().__init__({"uniform": {"low": float(low), "high": float(high)}})


class Normal(Initializer):
    """Normal with mean `loc` and standard deviation `scale`."""

    def __init__(self, loc: float = 0.0, scale: float = 1.0, name: str | None = None) -> None:
        super().__init__({"normal": {"mean": float(loc), "std": float(scale)}})


class TruncatedNormal(Initializer):
    """Normal, within two standard deviations of the mean."""

    def __init__(self, loc: float = 0.0, scale: float = 1.0, name: str | None = None) -> None:
        super().__init__({"truncated_normal": {"mean": float(loc), "std": float(scale)}})


class XavierUniform(Initializer):
    """Glorot and Bengio 2010, uniform."""

    def __init__(self, fan_in: float | None = None, fan_out: float | None = None, name: str | None = None) -> None:
        super().__init__({"xavier": {"uniform": True, "fan_in": fan_in, "fan_out": fan_out}})


class XavierNormal(Initializer):
    """Glorot and Bengio 2010, normal."""

    def __init__(self, fan_in: float | None = None, fan_out: float | None = None, name: str | None = None) -> None:
        super().__init__({"xavier": {"uniform": False, "fan_in": fan_in, "fan_out": fan_out}})


class KaimingUniform(Initializer):
    """He et al. 2015, uniform."""

    def __init__(self, fan_in: float | None = None) -> None:
        super().__init__({"msra": {"uniform": True, "fan_in": fan_in}})


class KaimingNormal(Initializer):
    """He et al. 2015, normal."""

    def __init__(self, fan_in: float | None = None) -> None:
        super().__init__({"msra": {"uniform": False, "fan_in": fan_in}})
