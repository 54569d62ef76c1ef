"""The layers of `openfleet.static.nn` with PaddlePaddle's signatures. `paddle.static.nn`, `paddle.tensor` and
`fluid.layers` share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openfleet.compat._arguments import with_arguments as _with_arguments
from openfleet.compat._notices import say_once as _say_once
from openfleet.static import nn as _nn
from openfleet.static.nn import activations as _activations
from openfleet.static.nn import (
    binary_cross_entropy,
    cast,
    continuous_value_model,
    create_parameter,
    cross_entropy,
    fc,
    fm,
    shape,
    slice,
    square_error_cost,
)
from openfleet.static.nn import embeddings as _embeddings
from openfleet.static.nn import metrics as _metrics
from openfleet.static.nn._ops import dtype_name as _dtype_name
from openfleet.static.param_attr import with_defaults as _with_defaults
from openfleet.static.program import Program, Variable
from openfleet.static.program import default_main_program as _main


def _named(name: str) -> Any:
    return _with_arguments(getattr(_nn, name), name=None)


abs, add, add_n, bmm, clip, concat, divide = map(_named, ["abs", "add", "add_n", "bmm", "clip", "concat", "divide"])
equal, exp, expand, full_like, gather = map(_named, ["equal", "exp", "expand", "full_like", "gather"])
greater_equal, greater_than, layer_norm = map(_named, ["greater_equal", "greater_than", "layer_norm"])
leaky_relu, less_equal, less_than, log, log_loss = map(
    _named, ["leaky_relu", "less_equal", "less_than", "log", "log_loss"]
)
logical_and, logical_not, logical_or = map(_named, ["logical_and", "logical_not", "logical_or"])
masked_select, matmul, max, maximum, mean = map(_named, ["masked_select", "matmul", "max", "maximum", "mean"])
min, minimum, multiply, not_equal, ones_like = map(_named, ["min", "minimum", "multiply", "not_equal", "ones_like"])
pow, relu, reshape, scale, sequence_mask = map(_named, ["pow", "relu", "reshape", "scale", "sequence_mask"])
sigmoid, split, sqrt, square, squeeze, stack = map(_named, ["sigmoid", "split", "sqrt", "square", "squeeze", "stack"])
subtract, sum, tanh, transpose, tril, triu = map(_named, ["subtract", "sum", "tanh", "transpose", "tril", "triu"])
unsqueeze, zeros_like = map(_named, ["unsqueeze", "zeros_like"])

topk = _with_arguments(_nn.topk, sorted=True, name=None)
prelu = _with_arguments(_nn.prelu, data_format=("NCHW", _activations.check_channels_second), name=None)
sequence_pad = _with_arguments(_nn.sequence_pad, name=None)
sequence_reverse = _with_arguments(_nn.sequence_reverse, name=None)
sequence_softmax = _with_arguments(_nn.sequence_softmax, use_cudnn=False, name=None)
sequence_unpad = _with_arguments(_nn.sequence_unpad, name=None)


def sequence_pool(input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0) -> Variable:
    """Combines the rows of each sequence into one row; a sequence without rows gives `pad_value`."""
    return _nn.sequence_pool(input, pool_type, pad_value=pad_value)


def sequence_first_step(input: Variable) -> Variable:
    """Returns the first row of each sequence."""
    return _nn.sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """Returns the last row of each sequence."""
    return _nn.sequence_pool(input, "last")


def sequence_expand(x: Variable, y: Variable, ref_level: int = -1, name: str | None = None) -> Variable:
    """Repeats each row of x for each row of the sequence of y that belongs to it."""
    if ref_level not in (-1, 0):
        raise NotImplementedError(f"`ref_level={ref_level}` of `sequence_expand`: sequences have one level")
    return _nn.sequence_expand(x, y)


def sequence_expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Repeats each row of x for each row of the sequence of y that belongs to it."""
    return _nn.sequence_expand(x, y)


def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: Any = None,
    param_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Convolves each sequence with filters that see `filter_size` rows."""
    if filter_stride != 1:
        raise NotImplementedError(f"`filter_stride={filter_stride}` of `sequence_conv`: filters move by one row")
    return _nn.sequence_conv(input, num_filters, filter_size, padding_start, param_attr, bias_attr, act)


def data(name: str, shape: Sequence[int | None], dtype: Any = None, lod_level: int = 0) -> Variable:
    """Declares a variable that every batch feeds. Declared again in the same way, it is the same variable."""
    dtype = "float32" if dtype is None else dtype
    known = _declared(name, "data")
    if known is not None and known.lod_level == lod_level and known.dtype == _dtype_name(dtype):
        sizes = tuple(-1 if size is None else int(size) for size in shape)
        if lod_level > 0 or known.shape == sizes:
            return known
    if lod_level > 0:
        _slot_ranks()[name] = len(shape)
    return _nn.data(name, shape, dtype, lod_level)


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """Declares a value that a program reads, and sets with `assign(x, output)`.

    Declared again with the same name, shape and value, it is the same variable.
    """
    known = None if name is None else _declared(name, "state")
    values = _main().__dict__.setdefault("_global_values", {})
    if known is not None and known.shape == tuple(int(size) for size in shape) and known.dtype == _dtype_name(dtype):
        if values.get(name, value) != value:
            raise ValueError(
                f"the global variable `{name}` exists with the first value {values[name]}, not {value}\n\n"
                "hint: give it another name"
            )
        return known
    variable = _nn.create_global_var(shape, value, dtype, persistable, force_cpu, name)
    values[variable.name] = value
    return variable


def _declared(name: str, kind: str) -> Variable | None:
    """The variable of the current program with this name and kind, if there is one."""
    program = _main()
    return program.var(name) if program.has_var(name) and program.var(name).kind == kind else None


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
    pooling: str | None = None,
    name: str | None = None,
) -> Variable:
    """Looks up ids in a table: sparse with `is_sparse` or `is_distributed`, otherwise a dense parameter."""
    _embeddings.check_dtype(dtype)
    sparse = is_sparse or is_distributed
    attr = _with_defaults(param_attr)
    is_computed = sparse and not _embeddings.can_be_looked_up(input)
    if is_computed:
        _say_once(
            f"the program computes the ids of the embedding `{attr.name or 'embedding'}` {list(size)}, so its table is "
            "a dense parameter: rows of a sparse table are pulled before a step begins"
        )
        sparse = False
    known = _names_of_parameters() if is_computed else set()
    vectors = _nn.embedding(input, size, sparse, padding_idx=padding_idx, param_attr=param_attr, pooling=pooling)
    # A regularizer turns the gradient of a sparse table into that of a dense parameter, in PaddlePaddle too.
    if is_computed and attr.regularizer is None:
        tables_of_computed_ids(_main()).update(_names_of_parameters() - known)
    if isinstance(vectors, _nn.SlotEmbedding):
        # The ids of a slot are [N], or [N, 1] where it is declared with two dimensions: [N, D] or [N, 1, D].
        return vectors.with_rows(axes=range(1, _slot_ranks().get(input.name, 2)))
    return vectors


def _names_of_parameters() -> set[str]:
    return {parameter.name for parameter in _main().all_parameters()}


def tables_of_computed_ids(program: Program) -> set[str]:
    """The dense parameters of a program that are sparse tables in PaddlePaddle, and trained as such."""
    return program.__dict__.setdefault("_tables_of_computed_ids", set())


def vectors_for_ids(vectors: Variable, ids: Variable) -> Variable:
    """The vectors in place of a last dimension of the ids of size 1, as PaddlePaddle's first `lookup_table`."""
    if isinstance(vectors, _nn.SlotEmbedding):
        return vectors.with_rows()
    if ids.ndim > 1 and ids.shape[-1] == 1 and vectors.ndim > ids.ndim:
        return squeeze(vectors, [ids.ndim - 1])
    return vectors


def _slot_ranks() -> dict[str, int]:
    """The number of dimensions with which each slot of the current program is declared."""
    return _main().__dict__.setdefault("_slot_ranks", {})


def sparse_embedding(
    input: Variable,
    size: Sequence[int],
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Any = None,
    table_class: str = "MemorySparseTable",
    param_attr: Any = None,
    dtype: Any = "float32",
    slot: Any = None,
    pooling: str | None = None,
) -> Variable:
    """Looks up ids in a sparse table without a bound on its ids."""
    _embeddings.check_dtype(dtype)
    _embeddings.check_table(table_class, is_test)
    vectors = _nn.sparse_embedding(input, size, padding_idx, entry=entry, param_attr=param_attr, pooling=pooling)
    return vectors_for_ids(vectors, input)


def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Variable:
    """Normalises every channel over the batch; with `is_test` by the moving averages."""
    return _nn.batch_norm(
        input,
        act,
        momentum=momentum,
        epsilon=epsilon,
        param_attr=param_attr,
        bias_attr=bias_attr,
        data_layout=data_layout,
        moving_mean_name=moving_mean_name,
        moving_variance_name=moving_variance_name,
        use_global_stats=use_global_stats or is_test,
    )


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 4095,
    topk: int = 1,
    slide_steps: int = 1,
    ins_tag_weight: Any = None,
) -> tuple[Variable, Variable, list[Variable]]:
    """Returns the AUC over all batches, the AUC over the last `slide_steps` batches, and the four counters."""
    _metrics.check_auc(curve, topk, ins_tag_weight)
    return _nn.auc(input, label, num_thresholds=num_thresholds, slide_steps=slide_steps)


def accuracy(input: Variable, label: Variable, k: int = 1, correct: Any = None, total: Any = None) -> Variable:
    """Returns the share of rows whose label is among the k classes with the highest scores."""
    _metrics.check_accuracy(correct, total)
    if input.shape[-1] == 1 and k == 1:
        # PaddlePaddle's scripts give it the probability of class 1 alone. Class 0 is then always the first, so that the
        # result is the share of label 0.
        _say_once("`accuracy` of one column of scores is the share of rows with label 0: give it a column per class")
        input = _nn.concat([input, _nn.scale(input, bias=-1.0)], -1)
    return _nn.accuracy(input, label, k)


__all__ = [name for name in dir() if name[0].islower() and name != "annotations"]
