"""Initializers: the first values of parameters and of embedding rows.

>>> static.initializer.Uniform(-0.1, 0.1)
Uniform({'uniform': {'low': -0.1, 'high': 0.1}})
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._deprecated import IGNORED, accepts_deprecated


class Initializer:
    """Base class: how the first values of a parameter are drawn. The seed of its program decides which values.

    >>> isinstance(static.initializer.Normal(), Initializer)
    True
    """

    def __init__(self, json: Any) -> None:
        self._json = json

    def to_json(self) -> Any:
        """Returns the JSON that the engine reads."""
        return self._json

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._json})"


class Constant(Initializer):
    """Starts every element with `value`.

    >>> weight = static.create_parameter([2], default_initializer=static.initializer.Constant(0.5))
    >>> _ = exe.run(static.default_startup_program())
    >>> exe.run(fetch_list=[static.nn.assign(weight)])[0].tolist()
    [0.5, 0.5]
    """

    def __init__(self, value: float = 0.0) -> None:
        super().__init__({"constant": float(value)})


class Assign(Initializer):
    """Starts a dense parameter with given values, of its shape.

    >>> weight = static.create_parameter([2], default_initializer=static.initializer.Assign([0.5, 2.0]))
    >>> _ = exe.run(static.default_startup_program())
    >>> exe.run(fetch_list=[static.nn.assign(weight)])[0].tolist()
    [0.5, 2.0]
    """

    def __init__(self, value: Any) -> None:
        super().__init__(np.asarray(value, dtype=np.float32).reshape(-1).tolist())

    def __repr__(self) -> str:
        return f"Assign({len(self._json)} values)"


class Uniform(Initializer):
    """Draws every element uniformly from `[low, high)`.

    >>> weight = static.create_parameter([300, 200], default_initializer=static.initializer.Uniform(-0.5, 0.5))
    >>> _ = exe.run(static.default_startup_program())
    >>> values = exe.run(fetch_list=[static.nn.assign(weight)])[0]
    >>> bool(abs(values).max() <= 0.5)
    True
    """

    @accepts_deprecated(name=IGNORED)
    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        super().__init__({"uniform": {"low": float(low), "high": float(high)}})


class Normal(Initializer):
    """Draws every element from a normal distribution with mean `loc` and standard deviation `scale`.

    >>> weight = static.create_parameter([300, 200], default_initializer=static.initializer.Normal(0.0, 0.1))
    >>> _ = exe.run(static.default_startup_program())
    >>> values = exe.run(fetch_list=[static.nn.assign(weight)])[0]
    >>> bool(0.09 < values.std() < 0.11)
    True
    """

    @accepts_deprecated(name=IGNORED)
    def __init__(self, loc: float = 0.0, scale: float = 1.0) -> None:
        super().__init__({"normal": {"mean": float(loc), "std": float(scale)}})


class TruncatedNormal(Initializer):
    """Draws every element from a normal distribution, within two standard deviations of the mean.

    >>> weight = static.create_parameter([300, 200], default_initializer=static.initializer.TruncatedNormal(0.0, 0.1))
    >>> _ = exe.run(static.default_startup_program())
    >>> values = exe.run(fetch_list=[static.nn.assign(weight)])[0]
    >>> bool(abs(values).max() <= 0.2001)
    True
    """

    @accepts_deprecated(name=IGNORED)
    def __init__(self, loc: float = 0.0, scale: float = 1.0) -> None:
        super().__init__({"truncated_normal": {"mean": float(loc), "std": float(scale)}})


class XavierUniform(Initializer):
    """Draws uniformly with a variance that suits the sizes of a layer (Glorot and Bengio 2010).

    `fan_in` and `fan_out` are the numbers of inputs and outputs; by default those of the parameter's shape.

    >>> weight = static.create_parameter([300, 200], default_initializer=static.initializer.XavierUniform())
    >>> _ = exe.run(static.default_startup_program())
    >>> values = exe.run(fetch_list=[static.nn.assign(weight)])[0]
    >>> bool(abs(values).max() <= (6 / 500) ** 0.5)
    True
    """

    @accepts_deprecated(name=IGNORED)
    def __init__(self, fan_in: float | None = None, fan_out: float | None = None) -> None:
        super().__init__({"xavier": {"uniform": True, "fan_in": fan_in, "fan_out": fan_out}})


class XavierNormal(Initializer):
    """Draws from a normal distribution with a variance that suits the sizes of a layer (Glorot and Bengio 2010).

    `fan_in` and `fan_out` are the numbers of inputs and outputs; by default those of the parameter's shape.

    >>> weight = static.create_parameter([300, 200], default_initializer=static.initializer.XavierNormal())
    >>> _ = exe.run(static.default_startup_program())
    >>> values = exe.run(fetch_list=[static.nn.assign(weight)])[0]
    >>> bool(0.06 < values.std() < 0.066)
    True
    """

    @accepts_deprecated(name=IGNORED)
    def __init__(self, fan_in: float | None = None, fan_out: float | None = None) -> None:
        super().__init__({"xavier": {"uniform": False, "fan_in": fan_in, "fan_out": fan_out}})


class KaimingUniform(Initializer):
    """Draws uniformly with a variance that suits a layer followed by `relu` (He et al. 2015).

    `fan_in` is the number of inputs; by default that of the parameter's shape.

    >>> weight = static.create_parameter([300, 200], default_initializer=static.initializer.KaimingUniform())
    >>> _ = exe.run(static.default_startup_program())
    >>> values = exe.run(fetch_list=[static.nn.assign(weight)])[0]
    >>> bool(abs(values).max() <= (6 / 300) ** 0.5)
    True
    """

    def __init__(self, fan_in: float | None = None) -> None:
        super().__init__({"msra": {"uniform": True, "fan_in": fan_in}})


class KaimingNormal(Initializer):
    """Draws from a normal distribution with a variance that suits a layer followed by `relu` (He et al. 2015).

    `fan_in` is the number of inputs; by default that of the parameter's shape.

    >>> weight = static.create_parameter([300, 200], default_initializer=static.initializer.KaimingNormal())
    >>> _ = exe.run(static.default_startup_program())
    >>> values = exe.run(fetch_list=[static.nn.assign(weight)])[0]
    >>> bool(0.079 < values.std() < 0.084)
    True
    """

    def __init__(self, fan_in: float | None = None) -> None:
        super().__init__({"msra": {"uniform": False, "fan_in": fan_in}})
