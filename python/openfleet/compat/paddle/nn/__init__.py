"""`paddle.nn`: layers, in static programs."""

from openfleet import compat
from openfleet.static.clip import ClipGradByNorm, ClipGradByValue

from .._parameters import ClipGradByGlobalNorm, ParamAttr
from . import functional, initializer
from .common import (
    BatchNorm,
    BatchNorm1D,
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    LeakyReLU,
    Linear,
    MSELoss,
    PReLU,
    ReLU,
    Sigmoid,
    Softmax,
    Tanh,
)
from .layer import Layer, LayerList, ParameterList, Sequential

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("common", "compat", "layer")]
__getattr__ = compat.absent(__name__, __all__)
