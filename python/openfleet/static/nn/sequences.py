"""Layers on sequences: the ids of a slot, one row for each, and what layers make of them row by row.

Letters: B rows of the batch, which are the sequences; N rows of all sequences together; T length of a padded sequence;
D size of a row.

The embedding of a slot with `pooling="each"` has the vectors of all its ids one below the other, [N, D]. Layers that
work row by row (`fc`, activations, sums and products of tensors of the same sequences, `concat` along the last axis)
keep the sequences; the layers of this file use where each of them begins and ends.
"""

from __future__ import annotations

from typing import Any

from ..._deprecated import IGNORED, accepts_deprecated
from ..program import Variable
from ._ops import net_of, unary, variable
from .constants import full
from .dense import fc
from .embeddings import SlotEmbedding
from .shapes import reshape

_POOLINGS = {
    "average": "mean",
    "first": "first",
    "last": "last",
    "max": "max",
    "mean": "mean",
    "sqrt": "sqrtn",
    "sqrtn": "sqrtn",
    "sum": "sum",
}


def joined(x: Variable) -> Variable:
    """Returns the rows of all sequences: the ids of a slot [N, 1], the vectors of its embedding, or the tensor."""
    if isinstance(x, SlotEmbedding):
        return x.pool("each")
    return unary("slot_ids", x) if x.lod_level else x


@accepts_deprecated(is_test=IGNORED)
def sequence_pool(input: Variable, pool_type: str, *, pad_value: float = 0.0) -> Variable:
    """Combines the rows of each sequence into one row.

    Args:
        input: The result of `embedding` or `sparse_embedding` on a slot, without `pooling`, or a tensor of sequences
            [N, ...].
        pool_type: `sum`, `average`, `sqrt` (the sum divided by the square root of the number of rows), `max` (in each
            place the greatest element), `first` or `last`.
        pad_value: The elements of the result for a sequence without rows.

    Returns:
        [B, ...].

    Raises:
        NotImplementedError: There is no such pooling.
        ProgramError: The rows of the input are not those of sequences.

    >>> clicks = static.data("clicks", [None, 1], "int64", lod_level=1)
    >>> vectors = static.nn.embedding(clicks, size=[1000, 8], is_sparse=True)
    >>> static.nn.sequence_pool(vectors, "average").shape
    (-1, 8)

    Pool what a layer makes of each vector:

    >>> hidden = static.nn.fc(static.nn.embedding(clicks, [1000, 8], is_sparse=True, pooling="each"), size=4)
    >>> static.nn.sequence_pool(hidden, "max").shape
    (-1, 4)
    """
    pooling = _POOLINGS.get(pool_type.lower())
    if pooling is None:
        known = "`sum`, `average`, `sqrt`, `max`, `first` and `last`"
        raise NotImplementedError(f"`pool_type` `{pool_type}`: there are {known}")
    if isinstance(input, SlotEmbedding) and pooling in ("sum", "mean", "sqrtn") and pad_value == 0.0:
        return input.pool(pooling)
    rows = joined(input)
    return variable(net_of(rows).sequence_pool(rows.name, pooling, float(pad_value)))


@accepts_deprecated(name=IGNORED, use_cudnn=IGNORED)
def sequence_softmax(input: Variable) -> Variable:
    """Returns the softmax over the rows of each sequence, [N, ...]: weights that add up to 1 in every sequence.

    Attention over the clicks of a user, weighted by a score for each click:

    >>> clicks = static.data("clicks", [None, 1], "int64", lod_level=1)
    >>> vectors = static.nn.embedding(clicks, size=[1000, 8], is_sparse=True, pooling="each")
    >>> weights = static.nn.sequence_softmax(static.nn.fc(vectors, size=1))
    >>> static.nn.sequence_pool(static.nn.multiply(vectors, weights), "sum").shape
    (-1, 8)
    """
    return unary("sequence_softmax", joined(input))


@accepts_deprecated(name=IGNORED)
def sequence_reverse(x: Variable) -> Variable:
    """Returns the rows of each sequence in reverse order.

    >>> words = static.data("words", [None, 1], "int64", lod_level=1)
    >>> backwards = static.nn.sequence_reverse(words)
    >>> feed = {"words": static.create_lod_tensor([[1, 2, 3], [4]])}
    >>> exe.run(feed=feed, fetch_list=[backwards])[0].ravel().tolist()
    [3, 2, 1, 4]
    """
    return unary("sequence_reverse", joined(x))


@accepts_deprecated(name=IGNORED)
def sequence_expand(x: Variable, y: Variable) -> Variable:
    """Repeats each row of x [B, ...] for each row of the sequence of y that belongs to it: [N, ...].

    The result has the sequences of y. If x has sequences too, each must have one row.

    >>> clicks = static.data("clicks", [None, 1], "int64", lod_level=1)
    >>> user = static.data("user", [None, 4])
    >>> vectors = static.nn.embedding(clicks, size=[1000, 8], is_sparse=True, pooling="each")
    >>> static.nn.concat([vectors, static.nn.sequence_expand(user, vectors)], axis=1).shape
    (-1, 12)
    """
    rows, like = joined(x), joined(y)
    return variable(net_of(rows, like).sequence_expand(rows.name, like.name))


@accepts_deprecated(name=IGNORED)
def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    padding_start: int | None = None,
    weight_attr: Any = None,
    bias_attr: Any = None,
    activation: str | None = None,
) -> Variable:
    """Convolves each sequence [N, D] with filters that see `filter_size` rows: [N, M].

    Args:
        input: A tensor of sequences.
        num_filters: M.
        filter_size: How many rows a filter sees. Rows before and after the sequence are zeros.
        padding_start: The first of these rows, counted from the row of the result; by default half of them come before
            it.
        weight_attr: How the filters [filter_size D, M] are named, initialised and trained.
        bias_attr: The same for the bias [M]; `False` for none.
        activation: As for `fc`.

    >>> words = static.data("words", [None, 1], "int64", lod_level=1)
    >>> vectors = static.nn.embedding(words, size=[1000, 8], is_sparse=True, pooling="each")
    >>> static.nn.sequence_pool(static.nn.sequence_conv(vectors, 16, activation="tanh"), "max").shape
    (-1, 16)
    """
    rows = joined(input)
    start = -(int(filter_size) // 2) if padding_start is None else int(padding_start)
    windows = variable(net_of(rows).sequence_window(rows.name, start, int(filter_size)))
    return fc(windows, num_filters, 1, weight_attr, bias_attr, activation)


@accepts_deprecated(name=IGNORED)
def sequence_pad(x: Variable, pad_value: Variable | float = 0, maxlen: int | None = None) -> tuple[Variable, Variable]:
    """Puts each sequence of x into a row of its own, with padding behind the shorter ones.

    Args:
        x: A slot or a tensor of sequences [N, ...].
        pad_value: A number, or a tensor of one element or with the shape of a row.
        maxlen: T; by default as long as the longest sequence of the batch.

    Returns:
        [B, T, ...], and the lengths of the sequences [B], `int64`.

    Raises:
        ProgramError: While the program runs: a sequence is longer than `maxlen`.

    >>> words = static.data("words", [None, 1], "int64", lod_level=1)
    >>> padded, lengths = static.nn.sequence_pad(words, 0)
    >>> feed = {"words": static.create_lod_tensor([[1, 2, 3], [4]])}
    >>> ids, counts = exe.run(feed=feed, fetch_list=[static.nn.squeeze(padded, [2]), lengths])
    >>> ids.tolist(), counts.tolist()
    ([[1, 2, 3], [4, 0, 0]], [3, 1])
    """
    rows = joined(x)
    padding = pad_value if isinstance(pad_value, Variable) else full([1], pad_value, rows.dtype)
    net = net_of(rows, padding)
    padded, lengths = net.sequence_pad(rows.name, padding.name, None if maxlen is None else int(maxlen))
    return variable(padded), variable(lengths)


@accepts_deprecated(name=IGNORED)
def sequence_unpad(x: Variable, length: Variable) -> Variable:
    """Joins the first `length[b]` steps of each row of x [B, T, ...] to sequences [N, ...]: undoes `sequence_pad`.

    >>> x, length = static.nn.literal([[1, 2, 0], [3, 0, 0]]), static.nn.literal([2, 1])
    >>> exe.run(fetch_list=[static.nn.sequence_unpad(x, length)])[0].tolist()
    [1, 2, 3]
    """
    flat = length if length.ndim == 1 else reshape(length, [-1])
    return variable(net_of(x, flat).sequence_unpad(x.name, flat.name))
