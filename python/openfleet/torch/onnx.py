"""Exports a model as one ONNX file: ids in, predictions out.

    ids -> LabelEncoder (id -> row number; not for ids below a bound) -> Gather -> pooling of bags -> the other layers

PyTorch's TorchScript exporter traces the layers. Embeddings write their own nodes, in the `symbolic` methods below.
Rows and ids do not pass through the exporter: in the trace a table has a stand-in of one row, which is replaced in the
finished graph. So rows are copied once, and there may be more of them than the exporter could write.

The exporter of `torch.export` (`dynamo=True`) takes no nodes of others in PyTorch 2.5, and needs `onnxscript`. It can
replace the TorchScript exporter here when that version no longer matters.

Letters: U known ids, N ids of a batch, B bags, L ids per bag, D size of a row.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from .convert import LocalEmbeddingCollection, RemappedEmbedding, RemappedEmbeddingBag, to_local
from .embeddings import inputs_of

# The first opset whose `ScatterElements` has the reduction `max`.
_OPSET = 18
# The domain of `LabelEncoder`, and the first opset there in which it takes tensors.
_ML_DOMAIN, _ML_OPSET = "ai.onnx.ml", 4
# The domain of the nodes that become a `LabelEncoder` in the finished graph. Exporters of PyTorch check known domains.
_OWN_DOMAIN = "openfleet"
# The size limit of a protobuf file.
_LARGEST_FILE = 2**31 - 1
# External rows start at a multiple of this, so that they can be mapped into memory.
_ALIGNMENT = 4096
# A key and a value of a `LabelEncoder`.
_BYTES_PER_ID = 16
# What a tuple of arguments of an embedding has.
_PARTS_OF_A_FEATURE = ("ids", "offsets", "weights")


def export_onnx(
    model: torch.nn.Module,
    args: Any,
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    inline_bytes: int = 1 << 30,
) -> None:
    """Writes a model with its rows, as they are now, as one ONNX file that takes ids.

    Needs PyTorch 2.5 and `pip install onnx`. Call it on one worker, while the job runs; the model does not change.

    The graph predicts as the model does after `model.eval()`. Ids without a row have their first values where the
    embedding has `num_embeddings`. Elsewhere they share one row, of zeros or of the value of `initializer.Constant`.

    Inputs are named after the arguments of `forward`, and those in a dictionary after their keys. A tuple in a
    dictionary becomes `KEY.ids`, `KEY.offsets` and `KEY.weights`, as `EmbeddingCollection` reads it. Outputs are named
    `output`, or `output.0` and so on, or after their keys: `output.KEY` if an input is called `KEY`.

    Args:
        model: A model with embeddings of `openfleet.torch`.
        args: Arguments of `forward` to trace the model with: a tensor, or a tuple of tensors and of dictionaries, lists
            and tuples of tensors.
        path: The file to write.
        kwargs: Arguments of `forward` by name.
        input_names: Other names of the inputs, in the order of the arguments.
        output_names: Other names of the outputs.
        dynamic_axes: The axes whose size may differ from that of the traced tensors, by input, with a name for each. By
            default the first axis of every input.
        inline_bytes: Rows larger than this are in the file `PATH.data`, which belongs to the model.

    Raises:
        ImportError: The package `onnx` is not installed, or PyTorch is too old.
        NotImplementedError: ONNX lacks an op of the model.
        TypeError: An argument is neither a tensor nor made of tensors.
        ValueError: There are more or fewer names than tensors, or more ids than an ONNX file can have.
        openfleet.OrderError: The model has no tables yet.

    >>> model = torch.nn.Sequential(Embedding(4), torch.nn.Flatten(), torch.nn.Linear(3 * 4, 1))
    >>> optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters()), model=model)
    >>> export_onnx(model, torch.tensor([[1, 2, 3]]), "model.onnx", input_names=["ids"])
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError("`export_onnx` needs the package `onnx`\n\nhint: pip install onnx") from error
    if "dynamo" not in inspect.signature(torch.onnx.export).parameters:
        # Older versions do not know the opset.
        raise ImportError(f"`export_onnx` needs PyTorch 2.5, got {torch.__version__}\n\nhint: pip install -U torch")
    call = inspect.signature(model.forward).bind(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    inputs = _named_inputs(call.arguments, input_names)
    local = to_local(model).eval()
    with torch.no_grad():
        outputs = _named_outputs(local(*call.args, **call.kwargs), output_names, inputs)
    tables = _replace_lookups(local)
    traced = _Flat(local, call)
    graph = io.BytesIO()
    # Without gradients, attention is one op, which ONNX lacks.
    with torch.enable_grad():
        _trace(traced, inputs, outputs, _first_axes(inputs) if dynamic_axes is None else dynamic_axes, graph)
    proto = onnx.load_model_from_string(graph.getvalue())
    by_stand_in = {id(table.stand_in): table for table in tables}
    parameters = traced.named_parameters(remove_duplicate=False)
    rows = {name: by_stand_in[id(each)] for name, each in parameters if id(each) in by_stand_in}
    _write(proto, tables, rows, Path(path), inline_bytes)


def _trace(
    traced: _Flat,
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    dynamic_axes: Mapping[str, Mapping[int, str]],
    graph: io.BytesIO,
) -> None:
    try:
        with warnings.catch_warnings():
            # Of this exporter, as a whole.
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(openfleet\.)?torch\.onnx")
            torch.onnx.export(
                traced,
                tuple(inputs.values()),
                graph,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes={name: dict(axes) for name, axes in dynamic_axes.items()},
                opset_version=_OPSET,
                custom_opsets={_OWN_DOMAIN: 1},
                dynamo=False,
            )
    except torch.onnx.errors.UnsupportedOperatorError as error:
        op = re.search(r"operator '([^']+)'", str(error))
        what = f"the op `{op.group(1)}` of the model" if op else "an op of the model"
        raise NotImplementedError(
            f"{what} has no form in ONNX opset {_OPSET}\n\nhint: write it with other ops, or move it out of the model"
        ) from error


def _named_inputs(arguments: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, torch.Tensor]:
    found = list(_tensors(arguments, ()))
    # A name is only as long as it must be: `user`, and `features.user` if another dictionary has a `user`.
    short = [".".join(keys[1:] if isinstance(arguments[keys[0]], Mapping) else keys) for keys, _ in found]
    times = Counter(short)
    own = [name if times[name] == 1 else ".".join(keys) for name, (keys, _) in zip(short, found)]
    return dict(zip(_chosen(own, names, "input"), (tensor for _, tensor in found)))


def _named_outputs(result: Any, names: Sequence[str] | None, inputs: Mapping[str, torch.Tensor]) -> list[str]:
    own = []
    for keys, _ in _tensors(result, ()):
        name = ".".join(keys)
        has_key = isinstance(result, Mapping) and name not in inputs
        own.append(name if has_key else ".".join(["output", *keys]))
    return _chosen(own, names, "output")


def _chosen(own: list[str], names: Sequence[str] | None, what: str) -> list[str]:
    if names is None:
        return own
    if len(names) != len(own) or len(set(names)) != len(own):
        raise ValueError(f"`{what}_names` expects {len(own)} different names, for {', '.join(own)}, got {list(names)}")
    return list(names)


def _tensors(value: Any, keys: tuple[str, ...], in_dictionary: bool = False) -> Iterator[tuple[Any, torch.Tensor]]:
    """The tensors in an argument or a result, each with the keys that lead to it."""
    if isinstance(value, torch.Tensor):
        yield keys, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors(each, (*keys, str(key)), len(keys) > 0)
    elif isinstance(value, (tuple, list)):
        is_feature = in_dictionary and len(value) <= len(_PARTS_OF_A_FEATURE)
        parts = _PARTS_OF_A_FEATURE if is_feature else [str(index) for index in range(len(value))]
        for part, each in zip(parts, value):
            yield from _tensors(each, (*keys, part))
    elif not isinstance(value, (bool, int, float, str, type(None))):
        raise TypeError(
            f"`{'.'.join(keys)}` is a {type(value).__name__}: a graph takes and returns tensors, and dictionaries, "
            "lists and tuples of tensors\n\nhint: export a module that makes it of tensors"
        )


def _with_tensors(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """A copy of an argument that has other tensors, in the order of `_tensors`."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([_with_tensors(each, tensors) for each in value])
    return value


def _first_axes(inputs: Mapping[str, torch.Tensor]) -> dict[str, dict[int, str]]:
    """Names the first axis of each input.

    Runtimes reuse memory among axes of one name. The first axis of a one-dimensional input may be that of all ids of
    the batch or that of its bags, so it has a name of its own.
    """
    batches = {tensor.shape[0] for tensor in inputs.values() if tensor.dim() > 1}
    return {
        name: {0: "batch" if tensor.dim() > 1 and len(batches) == 1 else f"{name}.size"}
        for name, tensor in inputs.items()
        if tensor.dim() > 0
    }


class _Flat(torch.nn.Module):
    """A model that takes and returns tensors, as a graph does."""

    def __init__(self, model: torch.nn.Module, call: inspect.BoundArguments) -> None:
        super().__init__()
        self.model, self._call = model, call

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments = _with_tensors(self._call.arguments, iter(tensors))
        call = inspect.BoundArguments(self._call.signature, arguments)
        return tuple(tensor for _, tensor in _tensors(self.model(*call.args, **call.kwargs), ()))


class _Table:
    """The rows of the embeddings that share a weight [U + 1, D], or [V, D] for ids below V.

    In the trace, `stand_in` [1, D] has the place of the weight and `number` that of the ids.
    """

    def __init__(self, number: int, module: Any) -> None:
        self.number, self.weight = number, module.weight
        self.ids: Any = module.ids if isinstance(module, _REMAPPED) else None
        # No two are equal, because the exporter merges equal parameters.
        self.stand_in = torch.nn.Parameter(torch.full_like(self.weight[:1], number), requires_grad=False)
        self.row_numbers: Any = getattr(module, "positions", None)

    def values(self) -> Any:
        """Returns the weight as an array."""
        return self.weight.detach().contiguous().numpy()

    def known_ids(self) -> Any:
        """Returns the ids of a table without a bound. If there are none, any id will do: there is only one row."""
        return self.ids if len(self.ids) else torch.zeros(1, dtype=torch.int64)

    def positions(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the rows of the ids of some features."""
        inputs = tuple(_as_int64(each) for each in inputs)
        return inputs if self.ids is None else _Positions.apply(self, *inputs)


_REMAPPED = (RemappedEmbedding, RemappedEmbeddingBag)
_KINDS = (torch.nn.Embedding, torch.nn.EmbeddingBag, *_REMAPPED)


def _replace_lookups(model: torch.nn.Module) -> list[_Table]:
    """Lets the embeddings of a model write their own nodes, and returns their tables."""
    tables: dict[int, _Table] = {}
    modules: list[Any] = [module for module in model.modules() if type(module) in _KINDS]
    for module in modules:
        # What PyTorch's own exporter is for.
        if module.max_norm is not None or module.weight.dtype != torch.float32:
            continue
        table = tables.get(id(module.weight)) or _Table(len(tables), module)
        tables[id(module.weight)] = table
        module.forward, module.weight = _LookUp(module, table), table.stand_in
    collections: list[Any] = [module for module in model.modules() if isinstance(module, LocalEmbeddingCollection)]
    for module in collections:
        module.forward = _LookUpAll(module)
    return list(tables.values())


class _LookUp:
    """The forward of an embedding, as nodes."""

    def __init__(self, module: Any, table: _Table) -> None:
        self._module, self.table = module, table

    def __call__(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.vectors(self.table.positions(input)[0], offsets, per_sample_weights)

    def vectors(
        self,
        positions: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        table = self.table
        if not isinstance(self._module, torch.nn.EmbeddingBag):
            return _Rows.apply(table, table.stand_in, positions)
        offsets = None if offsets is None else _as_int64(offsets)
        return _Bags.apply(self._module, table, table.stand_in, positions, offsets, per_sample_weights)


class _LookUpAll:
    """The forward of a collection, as nodes: one `LabelEncoder` per table, because each of them has all ids."""

    def __init__(self, collection: LocalEmbeddingCollection) -> None:
        self._features = collection.features
        self._look_ups: dict[str, Any] = {name: each.forward for name, each in collection.features.items()}

    def __call__(self, features: Any) -> dict[str, torch.Tensor]:
        inputs = inputs_of(features, self._features)
        by_table: dict[_Table, list[str]] = {}
        for name in inputs:
            by_table.setdefault(self._look_ups[name].table, []).append(name)
        positions: dict[str, torch.Tensor] = {}
        for table, names in by_table.items():
            positions.update(zip(names, table.positions(*(inputs[name][0] for name in names))))
        return {name: self._look_ups[name].vectors(positions[name], *given[1:]) for name, given in inputs.items()}


def _as_int64(ids: torch.Tensor) -> torch.Tensor:
    return ids if ids.dtype == torch.int64 else ids.long()


@contextmanager
def _untraced() -> Iterator[None]:
    """Hides what runs inside from the tracer, which would record it with all rows as a constant."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


# `forward` of these functions computes what the rest of the model is traced with; `symbolic` writes the nodes.


class _Positions(torch.autograd.Function):
    """The row of each id of some features."""

    @staticmethod
    def forward(context: Any, table: _Table, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with _untraced():
            return tuple(table.row_numbers(input) for input in inputs)

    @staticmethod
    def symbolic(g: Any, table: _Table, *inputs: Any) -> Any:
        def row_numbers(ids: Any) -> Any:
            numbers = g.op(f"{_OWN_DOMAIN}::RowNumbers", ids, table_i=table.number)
            # The exporter knows the shapes of the results of other nodes.
            numbers.setType(ids.type())
            return numbers

        if len(inputs) == 1:
            return (row_numbers(inputs[0]),)
        flat = [g.op("Reshape", input, _ints(g, -1)) for input in inputs]
        numbers = row_numbers(g.op("Concat", *flat, axis_i=0))
        counts = g.op("Concat", *(g.op("Shape", each) for each in flat), axis_i=0)
        parts = g.op("Split", numbers, counts, axis_i=0, outputs=len(inputs))
        return tuple(g.op("Reshape", part, g.op("Shape", input)) for part, input in zip(parts, inputs))


class _Rows(torch.autograd.Function):
    """The vectors of ids."""

    @staticmethod
    def forward(context: Any, table: _Table, stand_in: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        with _untraced():
            return functional.embedding(positions, table.weight)

    @staticmethod
    def symbolic(g: Any, table: _Table, stand_in: Any, positions: Any) -> Any:
        return g.op("Gather", stand_in, positions)


class _Bags(torch.autograd.Function):
    """The vectors of bags [B, D]: of ids [B, L], or of ids [N] with offsets."""

    @staticmethod
    def forward(
        context: Any,
        module: Any,
        table: _Table,
        stand_in: torch.Tensor,
        positions: torch.Tensor,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        with _untraced():
            return functional.embedding_bag(
                positions,
                table.weight,
                offsets,
                mode=module.mode,
                per_sample_weights=weights,
                include_last_offset=module.include_last_offset,
                padding_idx=module.padding_idx,
            )

    @staticmethod
    def symbolic(g: Any, module: Any, table: _Table, stand_in: Any, positions: Any, offsets: Any, weights: Any) -> Any:
        reduction = "max" if module.mode == "max" else "add"
        last, dim = _ints(g, -1), table.weight.shape[1]
        pooling: _OffsetPooling | _AxisPooling = (
            _AxisPooling(g) if offsets is None else _OffsetPooling(g, positions, offsets, module.include_last_offset)
        )
        vectors = g.op("Gather", stand_in, positions)
        if module.padding_idx is None:
            shape = g.op("Shape", g.op("Unsqueeze", positions, last))
            ones = g.op("ConstantOfShape", shape, value_t=torch.ones(1))
        else:
            is_padding = g.op("Unsqueeze", g.op("Equal", positions, _ints(g, module.padding_idx)), last)
            vectors = g.op("Where", is_padding, _float(g, _NOTHING[reduction]), vectors)
            ones = g.op("Where", is_padding, _float(g, 0.0), _float(g, 1.0))
        if weights is not None:
            vectors = g.op("Mul", vectors, g.op("Unsqueeze", weights, last))
        pooled = pooling.pool(vectors, reduction, dim)
        if module.mode == "mean":
            # The vector of an empty bag is zeros.
            pooled = g.op("Div", pooled, g.op("Max", pooling.pool(ones, "add", 1), _float(g, 1.0)))
        elif module.mode == "max":
            pooled = g.op("Where", g.op("IsInf", pooled, detect_positive_i=0), _float(g, 0.0), pooled)
        return pooled


# What a reduction of no values gives.
_NOTHING = {"add": 0.0, "max": float("-inf")}


class _AxisPooling:
    """Pools [B, L, D] over L."""

    def __init__(self, g: Any) -> None:
        self._g = g

    def pool(self, values: Any, reduction: str, dim: int) -> Any:
        op = "ReduceMax" if reduction == "max" else "ReduceSum"
        return self._g.op(op, values, _ints(self._g, 1), keepdims_i=0)


class _OffsetPooling:
    """Pools [N, D] over the ids of each bag.

    The bag of an id is the number of bags that begin at it or before, minus 1. Offsets 0 2 2 -> begins 1 0 2 0 -> bags
    0 0 2 2. One place more than there are ids is for empty bags at the end.

    `ScatterND` needs no copies of the indices, but in onnxruntime its threads lose values that have the same index
    (https://github.com/microsoft/onnxruntime/issues/18048).
    """

    def __init__(self, g: Any, positions: Any, offsets: Any, include_last_offset: bool) -> None:
        one = _ints(g, 1)
        self._g, count, self._bags = g, g.op("Shape", positions), g.op("Shape", offsets)
        begins = g.op("ConstantOfShape", g.op("Add", count, one), value_t=torch.zeros(1, dtype=torch.int64))
        ones = g.op("ConstantOfShape", self._bags, value_t=torch.ones(1, dtype=torch.int64))
        begins = g.op("ScatterElements", begins, offsets, ones, axis_i=0, reduction_s="add")
        begun = g.op("Slice", g.op("CumSum", begins, _ints(g, 0)), _ints(g, 0), count)
        self._bag_of_id = g.op("Unsqueeze", g.op("Sub", begun, one), _ints(g, -1))
        if include_last_offset:
            self._bags = g.op("Sub", self._bags, one)

    def pool(self, values: Any, reduction: str, dim: int) -> Any:
        g = self._g
        shape = g.op("Concat", self._bags, _ints(g, dim), axis_i=0)
        empty = g.op("ConstantOfShape", shape, value_t=torch.tensor([_NOTHING[reduction]]))
        places = g.op("Expand", self._bag_of_id, g.op("Shape", values))
        return g.op("ScatterElements", empty, places, values, axis_i=0, reduction_s=reduction)


def _ints(g: Any, *values: int) -> Any:
    return g.op("Constant", value_t=torch.tensor(values, dtype=torch.int64))


def _float(g: Any, value: float) -> Any:
    return g.op("Constant", value_t=torch.tensor(value))


def _write(proto: Any, tables: Sequence[_Table], rows: Mapping[str, _Table], path: Path, inline_bytes: int) -> None:
    """Replaces the stand-ins of a graph by rows and ids, and writes it."""
    from onnx import TensorProto, helper, numpy_helper

    encoders = [node for node in proto.graph.node if node.domain == _OWN_DOMAIN]
    encoded = [tables[node.attribute[0].i] for node in encoders]
    stand_ins = [each for each in proto.graph.initializer if each.name in rows]
    # What must be in the file, whatever the size of the rows.
    inside = proto.ByteSize() + sum(_BYTES_PER_ID * len(table.known_ids()) for table in encoded)
    if inside > _LARGEST_FILE:
        raise ValueError(
            f"the ids and layers of the model take {inside} bytes: an ONNX file has at most {_LARGEST_FILE}, and only "
            "rows can be in another file\n\n"
            "hint: look up the features of a table in one `EmbeddingCollection`, or drop rare ids with `fleet.shrink`"
        )
    row_bytes = sum(rows[each.name].weight.numel() * 4 for each in stand_ins)
    is_inline = row_bytes <= inline_bytes and inside + row_bytes <= _LARGEST_FILE
    for node, table in zip(encoders, encoded):
        ids, unknown = table.known_ids(), torch.tensor([len(table.weight) - 1])
        attributes = {"keys_tensor": ids, "values_tensor": torch.arange(len(ids)), "default_tensor": unknown}
        node.domain, node.op_type = _ML_DOMAIN, "LabelEncoder"
        del node.attribute[:]
        for name, tensor in attributes.items():
            node.attribute.append(helper.make_attribute(name, numpy_helper.from_array(tensor.numpy())))
    for opset in proto.opset_import:
        if opset.domain == _OWN_DOMAIN:
            opset.domain, opset.version = _ML_DOMAIN, _ML_OPSET
    if is_inline:
        for each in stand_ins:
            each.CopyFrom(numpy_helper.from_array(rows[each.name].values(), each.name))
    else:
        data = path.with_name(f"{path.name}.data")
        with open(data, "wb") as out:
            for each in stand_ins:
                values = rows[each.name].values()
                out.write(bytes(-out.tell() % _ALIGNMENT))
                place = {"location": data.name, "offset": str(out.tell()), "length": str(values.nbytes)}
                out.write(memoryview(values).cast("B"))
                each.CopyFrom(TensorProto(name=each.name, data_type=TensorProto.FLOAT, dims=values.shape))
                each.data_location = TensorProto.EXTERNAL
                for key, value in place.items():
                    each.external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
