"""Layers of recommendation models: products of features, and what counters of shows and clicks become."""

from __future__ import annotations

from typing import Any

from ..param_attr import attr_json
from ..program import Variable
from ._ops import net_of, unary, variable
from .elementwise import log, scale, subtract
from .shapes import concat, slice, split


def cross(x0: Variable, x: Variable, weight_attr: Any = None, bias_attr: Any = None) -> Variable:
    """Adds a cross layer of the Deep & Cross Network (Wang et al. 2017): `x0 (x . w) + b + x`.

    Args:
        x0: [B, N], the input of the first cross layer.
        x: [B, N], the output of the cross layer before; x0 for the first one.
        weight_attr: How the weight w [N] is named, initialised and trained.
        bias_attr: The same for the bias b [N].

    Returns:
        [B, N].

    >>> x0 = static.data("x", [None, 8])
    >>> static.nn.cross(x0, static.nn.cross(x0, x0)).shape
    (-1, 8)
    """
    return variable(net_of(x0, x).cross(x0.name, x.name, attr_json(weight_attr), attr_json(bias_attr)))


def fm(x: Variable, fields: int | None = None) -> Variable:
    """Returns the second-order term of a factorization machine: the sum of the products of all pairs of F fields.

    Args:
        x: [B, F, D], one vector of D floats per field; or [B, F * D] where `fields` is F.
        fields: F, where the fields are joined.

    Returns:
        [B, 1].

    >>> x = static.nn.literal([[[1.0, 2.0], [3.0, 4.0]]])
    >>> exe.run(fetch_list=[static.nn.fm(x)])[0].tolist()
    [[11.0]]
    """
    net = net_of(x)
    return unary("fm", x) if fields is None else variable(net.fm_of(x.name, fields))


def skip_gram(
    contexts: Variable, targets: Variable, dim: int, most_contexts: int, param_attr: Any = None, output_attr: Any = None
) -> Variable:
    """Returns the loss of skip-gram with negative sampling: of telling each row's first target from its other targets.

    Args:
        contexts: A slot with the context words of a row, at most `most_contexts` of them.
        targets: [B, T] word ids: the centre word first, then T - 1 negatives, which all contexts share.
        dim: The size of a word vector.
        most_contexts: The largest number of contexts per row.
        param_attr: How the table of word vectors is named, initialised and trained.
        output_attr: The same for the table of output vectors.

    Returns:
        [B, 1], one loss per row.

    >>> contexts = static.data("context", [None, 1], "int64", lod_level=1)
    >>> targets = static.data("target", [None, 6], "int64")
    >>> static.nn.skip_gram(contexts, targets, dim=100, most_contexts=10).shape
    (-1, 1)
    """
    attrs = attr_json(param_attr), attr_json(output_attr)
    return variable(net_of(contexts, targets).skip_gram(contexts.name, targets.name, dim, most_contexts, *attrs))


def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Replaces the first two columns, counters of shows and clicks, by logarithms: `log(shows + 1)` and
    `log(clicks + 1) - log(shows + 1)`.

    As in PaddlePaddle, no gradient of the loss flows into the two columns.

    Args:
        input: [N, D] with D above 2: shows, clicks, then the embedding.
        cvm: The shows and clicks of the rows. They reach a table through `ShowClickEntry`, so the values are not used.
        use_cvm: False removes the two columns instead.

    Returns:
        [N, D], or [N, D - 2] without `use_cvm`.

    Raises:
        ValueError: The input has another shape.
        TypeError: `cvm` is not a variable.

    >>> x, counts = static.data("x", [None, 10]), static.data("counts", [None, 2])
    >>> static.nn.continuous_value_model(x, counts, use_cvm=False).shape
    (-1, 8)
    """
    if input.ndim != 2 or input.shape[1] < 3:
        raise ValueError(f"`continuous_value_model` expects [N, D] with D above 2, got {list(input.shape)}")
    if not isinstance(cvm, Variable):
        raise TypeError(f"`cvm` expects a Variable, got {type(cvm).__name__}")
    rest = slice(input, [1], [2], [input.shape[1]])
    if not use_cvm:
        return rest
    counts = slice(input, [1], [0], [2])
    counts.stop_gradient = True
    shows, clicks = split(log(scale(counts, 1.0, 1.0)), 2, 1)
    return concat([shows, subtract(clicks, shows), rest], 1)
