"""`paddle.nn`: layers, in static programs."""

from openfleet import compat
from openfleet.static.clip import ClipGradByNorm, ClipGradByValue

from .._parameters import ClipGradByGlobalNorm, ParamAttr
from . import functional, initializer
from .common import (
    ELU,
    GELU,
    BatchNorm,
    BatchNorm1D,
    BatchNorm2D,
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    KLDivLoss,
    L1Loss,
    LayerNorm,
    LeakyReLU,
    Linear,
    MarginRankingLoss,
    MSELoss,
    PReLU,
    ReLU,
    Sigmoid,
    Silu,
    Softmax,
    Softplus,
    Swish,
    Tanh,
)
from .convolutions import (
    AdaptiveAvgPool1D,
    AdaptiveAvgPool2D,
    AdaptiveMaxPool1D,
    AdaptiveMaxPool2D,
    AvgPool1D,
    AvgPool2D,
    Conv1D,
    Conv2D,
    MaxPool1D,
    MaxPool2D,
)
from .layer import Layer, LayerList, ParameterList, Sequential
from .recurrent import GRU, LSTM, RNN, BiRNN, GRUCell, LSTMCell, RNNCellBase, SimpleRNN, SimpleRNNCell
from .transformer import MultiHeadAttention, TransformerEncoder, TransformerEncoderLayer

_MODULES = ("common", "compat", "convolutions", "layer", "recurrent", "transformer")
__all__ = [name for name in dir() if not name.startswith("_") and name not in _MODULES]
__getattr__ = compat.absent(__name__, __all__)
