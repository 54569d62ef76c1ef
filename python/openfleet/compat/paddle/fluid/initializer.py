"""`fluid.initializer`, with its own argument names."""

from __future__ import annotations

from openfleet import compat
from openfleet.static import initializer as _initializer
from openfleet.static.initializer import Constant, Initializer

ConstantInitializer = Constant


def _program_seed(seed: int) -> None:
    if seed != 0:
        raise NotImplementedError(f"`seed={seed}` of an initializer: set `Program.random_seed`")


def Normal(loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> Initializer:
    """Normal with mean `loc` and standard deviation `scale`."""
    _program_seed(seed)
    return _initializer.Normal(loc, scale)


NormalInitializer = Normal


def TruncatedNormal(loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> Initializer:
    """Normal, within two standard deviations of the mean."""
    _program_seed(seed)
    return _initializer.TruncatedNormal(loc, scale)


TruncatedNormalInitializer = TruncatedNormal


def Uniform(low: float = -1.0, high: float = 1.0, seed: int = 0) -> Initializer:
    """Uniform in `[low, high)`."""
    _program_seed(seed)
    return _initializer.Uniform(low, high)


UniformInitializer = Uniform


def Xavier(
    uniform: bool = True, fan_in: float | None = None, fan_out: float | None = None, seed: int = 0
) -> Initializer:
    """Glorot and Bengio 2010."""
    _program_seed(seed)
    return (_initializer.XavierUniform if uniform else _initializer.XavierNormal)(fan_in, fan_out)


XavierInitializer = Xavier


def MSRA(uniform: bool = True, fan_in: float | None = None, seed: int = 0) -> Initializer:
    """He et al. 2015."""
    _program_seed(seed)
    return (_initializer.KaimingUniform if uniform else _initializer.KaimingNormal)(fan_in)


MSRAInitializer = MSRA
__all__ = [name for name in dir() if name[0].isupper()]
__getattr__ = compat.absent(__name__, __all__)
