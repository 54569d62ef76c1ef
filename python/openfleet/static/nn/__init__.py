"""Layers, activations, losses and metrics. Each adds ops to the default main program and returns their result.

In the shapes of the docstrings B is the batch size, which a program writes as -1. The examples assume

    import numpy as np
    from openfleet import static
    exe = static.Executor()

A network of an embedding and a dense layer:

>>> user = static.data("user", [None, 1], "int64", lod_level=1)
>>> x = static.nn.embedding(user, size=[1000, 8], is_sparse=True, pooling="sum")
>>> y = static.nn.fc(x, size=1, activation="sigmoid")
>>> y.shape
(-1, 1)
"""

from ._ops import Selected, SizeVariable
from .activations import dropout, leaky_relu, prelu, relu, sigmoid, softmax, tanh
from .comparisons import (
    equal,
    greater_equal,
    greater_than,
    less_equal,
    less_than,
    logical_and,
    logical_not,
    logical_or,
    masked_select,
    not_equal,
    where,
)
from .constants import (
    full,
    full_like,
    literal,
    normal,
    one_hot,
    ones_like,
    sequence_mask,
    tril,
    triu,
    uniform,
    zeros_like,
)
from .dense import bmm, fc, matmul
from .elementwise import (
    abs,
    add,
    add_n,
    assign,
    cast,
    clip,
    divide,
    exp,
    log,
    maximum,
    minimum,
    multiply,
    pow,
    scale,
    sqrt,
    square,
    subtract,
)
from .embeddings import SlotEmbedding, embedding, sequence_pool, sparse_embedding
from .inputs import create_parameter, data
from .interactions import continuous_value_model, cross, fm, skip_gram
from .losses import (
    binary_cross_entropy,
    cross_entropy,
    log_loss,
    sigmoid_cross_entropy_with_logits,
    softmax_with_cross_entropy,
    square_error_cost,
)
from .metrics import accuracy, auc
from .norms import batch_norm, l2_normalize, layer_norm
from .reductions import max, mean, min, sum, topk
from .shapes import (
    JoinedIds,
    ShapeVariable,
    concat,
    expand,
    flatten,
    gather,
    reshape,
    shape,
    slice,
    split,
    squeeze,
    stack,
    tile,
    transpose,
    unsqueeze,
)

__all__ = [
    "JoinedIds",
    "Selected",
    "ShapeVariable",
    "SizeVariable",
    "SlotEmbedding",
    "abs",
    "accuracy",
    "add",
    "add_n",
    "assign",
    "auc",
    "batch_norm",
    "binary_cross_entropy",
    "bmm",
    "cast",
    "clip",
    "concat",
    "continuous_value_model",
    "create_parameter",
    "cross",
    "cross_entropy",
    "data",
    "divide",
    "dropout",
    "embedding",
    "equal",
    "exp",
    "expand",
    "fc",
    "flatten",
    "fm",
    "full",
    "full_like",
    "gather",
    "greater_equal",
    "greater_than",
    "l2_normalize",
    "layer_norm",
    "leaky_relu",
    "less_equal",
    "less_than",
    "literal",
    "log",
    "log_loss",
    "logical_and",
    "logical_not",
    "logical_or",
    "masked_select",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "normal",
    "not_equal",
    "one_hot",
    "ones_like",
    "pow",
    "prelu",
    "relu",
    "reshape",
    "scale",
    "sequence_mask",
    "sequence_pool",
    "shape",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "skip_gram",
    "slice",
    "softmax",
    "softmax_with_cross_entropy",
    "sparse_embedding",
    "split",
    "sqrt",
    "square",
    "square_error_cost",
    "squeeze",
    "stack",
    "subtract",
    "sum",
    "tanh",
    "tile",
    "topk",
    "transpose",
    "tril",
    "triu",
    "uniform",
    "unsqueeze",
    "where",
    "zeros_like",
]
