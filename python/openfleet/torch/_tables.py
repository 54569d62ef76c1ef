"""The tables and parameters of a PyTorch model as a program, which executors train in a process or on servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .. import _native, static
from .._log import logger
from ..fleet import _job
from ..static.entry import EntryAttr
from ..static.optimizer import Optimizer
from ..static.scope import Scope


@dataclass
class Table:
    """What a module says of its table."""

    name: str | None
    dim: int
    rows: int | None
    initializer: Any
    optimizer: Optimizer | None
    entry: EntryAttr | None
    storage: str
    # Its name in the program, once the module is bound.
    key: str = ""
    # The first rows of the ids from 0 on, until they are in the table.
    weights: torch.Tensor | None = None

    def merge(self, other: Table) -> None:
        """Adds what another module says of the same table.

        Raises:
            ValueError: They do not agree.
        """
        if (self.dim, self.rows, self.storage) != (other.dim, other.rows, other.storage):
            raise ValueError(
                f"two embeddings of the table `{self.key}` differ: {self.rows} ids of {self.dim} floats "
                f"({self.storage}), and {other.rows} ids of {other.dim} floats ({other.storage})"
            )
        for what in ("initializer", "optimizer", "entry"):
            ours, theirs = getattr(self, what), getattr(other, what)
            if ours is None:
                setattr(self, what, theirs)
            elif theirs is not None and (type(ours), vars(ours)) != (type(theirs), vars(theirs)):
                raise ValueError(f"two embeddings of the table `{self.key}` differ in their `{what}`")
        if self.weights is None:
            self.weights = other.weights
        elif other.weights is not None and not torch.equal(self.weights, other.weights):
            raise ValueError(f"two embeddings of the table `{self.key}` differ in their weights")


# Rows that one call copies.
_ROWS_AT_A_TIME = 1 << 18

# The types of buffers that a checkpoint has.
_DTYPES = {torch.float32: "float32", torch.int64: "int64"}


def define(
    tables: Iterable[Table], parameters: Mapping[str, Any], decays: Mapping[str, float], buffers: Mapping[str, Any]
) -> static.Variable:
    """Writes a program that has the tables, parameters and buffers, and returns what stands for its loss.

    The program is never run: its layers are PyTorch's. It says what is trained, saved and loaded.
    """
    terms = []
    for table in tables:
        ids = static.data(f"{table.key}.ids", [None, 1], "int64", lod_level=1)
        attr = static.ParamAttr(name=table.key, initializer=table.initializer)
        options: dict[str, Any] = {"param_attr": attr, "pooling": "sum", "storage": table.storage}
        if table.rows is None or table.entry is not None:
            vectors = static.nn.sparse_embedding(ids, [table.rows or 0, table.dim], entry=table.entry, **options)
        else:
            vectors = static.nn.embedding(ids, [table.rows, table.dim], is_sparse=True, **options)
        terms.append(static.nn.mean(vectors))
    for name, parameter in parameters.items():
        decay = decays.get(name, 0.0)
        attr = static.ParamAttr(name=name, regularizer=static.regularizer.L2Decay(decay) if decay else None)
        terms.append(static.nn.mean(static.create_parameter(list(parameter.shape) or [1], attr=attr)))
    for name, buffer in buffers.items():
        static.create_global_var(list(buffer.shape) or [1], 0.0, _DTYPES[buffer.dtype], name=name)
    return static.nn.add_n(terms)


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that are part of a model's state and of its checkpoints, such as running statistics."""
    state = model.state_dict()
    return {name: each for name, each in model.named_buffers() if name in state and each.dtype in _DTYPES}


def tell_unsaved_buffers(model: torch.nn.Module) -> None:
    """Says which buffers checkpoints do not have."""
    for name, buffer in model.named_buffers():
        if buffer.dtype not in _DTYPES:
            logger.warning("the buffer `%s` is %s: checkpoints have buffers of float32 and int64", name, buffer.dtype)


class Tables:
    """The tables and parameters of one model, in a scope of this process or on the servers of a job.

    Buffers are in the scope when values are saved and loaded; between that, each worker has its own.
    """

    def __init__(
        self,
        program: static.Program,
        startup: static.Program,
        scope: Scope,
        tables: Iterable[Table],
        parameters: Mapping[str, Any],
        buffers: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.program, self.scope, self._parameters = program, scope, dict(parameters)
        self._buffers = buffers
        # By parameter, the version of the tensor whose values the tables have.
        self._versions: dict[str, int] = {}
        self._is_change_told = False
        self._tables_with_weights = [table for table in tables if table.weights is not None]
        # The executor whose tables have the first rows.
        self._filled: _native.Executor | None = None
        self._executor = static.Executor()
        self._process = os.getpid()
        # Of the rows that have gradients, by the identity of the tensor: the module that looked them up, and their name
        # there.
        self._owners: dict[int, tuple[torch.nn.Module, str]] = {}
        self.staged: list[torch.nn.Parameter] = []
        self._executor.run(startup, scope=scope)
        self._set_parameters(self._parameters)
        self.store()

    def _set(self, tensors: Mapping[str, Any]) -> None:
        for name, tensor in tensors.items():
            values = tensor.detach().numpy().reshape(list(tensor.shape) or [1])
            self.scope.var(name).get_tensor().set(np.ascontiguousarray(values))

    def store(self) -> None:
        """Copies the buffers of the model, and parameters that other code has changed, into the scope."""
        self._set(self._buffers())
        self._take_changes()

    def _take_changes(self) -> None:
        """Takes over parameters whose values other code has changed, such as `load_state_dict`."""
        changed = {name: each for name, each in self._parameters.items() if each._version != self._versions.get(name)}
        if not changed:
            return
        job = _job.at_work()
        if job is None or not (job.server_num() > 0 or job.is_collective()):
            self._set_parameters(changed)
        elif not self._is_change_told:
            self._is_change_told = True
            logger.warning(
                "other code has changed the parameter `%s`: the job has its values, and a step restores them\n\n"
                "hint: change parameters before `fleet.init_worker`, or load a checkpoint with `fleet.load_model`",
                next(iter(changed)),
            )

    def _set_parameters(self, parameters: Mapping[str, Any]) -> None:
        self._set(parameters)
        self._remember(parameters)

    def _remember(self, parameters: Iterable[str]) -> None:
        self._versions.update((name, self._parameters[name]._version) for name in parameters)

    def _native_executor(self) -> _native.Executor:
        if os.getpid() != self._process:
            raise RuntimeError(
                "an embedding of OpenFleet is used in a child process, such as a worker of a DataLoader: connections "
                "to servers and tables are the parent's\n\nhint: look ids up in the training loop, not in the dataset"
            )
        executor = self._executor._for_scope(self.scope)
        if self._tables_with_weights and executor is not self._filled:
            self._put_weights(executor)
        return executor

    def _put_weights(self, executor: _native.Executor) -> None:
        """Puts the first rows of tables that begin with given weights.

        Every worker puts them, before anything else: rows that exist stay as they are.
        """
        for table in self._tables_with_weights:
            assert table.weights is not None
            ids = np.arange(len(table.weights), dtype=np.int64)
            for first in range(0, len(ids), _ROWS_AT_A_TIME):
                part = slice(first, first + _ROWS_AT_A_TIME)
                rows = np.ascontiguousarray(table.weights[part].numpy())
                executor.put_rows(self.program._native, table.key, ids[part], rows)
        self._filled = executor
        # Before `init_worker`, the tables of a job with servers are those of this process.
        if _job.at_work() is not None or _job.current().server_num() == 0:
            for table in self._tables_with_weights:
                table.weights = None
            self._tables_with_weights = []

    def ids(self, table: str) -> torch.Tensor:
        """Returns the ids of a table that have a row, in ascending order."""
        return torch.from_numpy(np.sort(self._native_executor().ids(self.program._native, table)))

    def rows(self, table: str, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of distinct ids; those of ids without a row have their first values."""
        parts = []
        for part in ids.split(_ROWS_AT_A_TIME):
            [(_, _, rows)] = self._native_executor().look_up(self.program._native, [(table, part.numpy())], False)
            parts.append(torch.from_numpy(rows))
        return torch.cat(parts)

    def look_ahead(self, wanted: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Says which ids of which tables the next batch will look up in training."""
        ids = [(table, np.ascontiguousarray(given.numpy(), np.int64)) for table, given in wanted]
        self._native_executor().look_ahead(self.program._native, ids)

    def look_up(
        self, module: torch.nn.Module, wanted: Mapping[str, torch.Tensor]
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Pulls the rows of the ids of some tables. With gradients enabled, the rows are ready for training.

        Without, or in a module in evaluation mode, no row is created.
        """
        _refuse_other_parallelism()
        has_gradients = torch.is_grad_enabled()
        ids = [(table, np.ascontiguousarray(given.numpy(), np.int64)) for table, given in wanted.items()]
        found = self._native_executor().look_up(self.program._native, ids, has_gradients and module.training)
        if not has_gradients and _job.at_work() is not None:
            # The rows are the newest of the job: other workers may have trained the parameters too.
            self.refresh()
        results = {}
        for table, (keys, positions, values) in zip(wanted, found):
            rows = torch.from_numpy(values)
            if has_gradients:
                rows = torch.nn.Parameter(rows)
                rows._openfleet = (table, keys)
                rows.register_post_accumulate_grad_hook(lambda rows: self._stage(module, rows))
            results[table] = rows, torch.from_numpy(positions)
        return results

    def _stage(self, module: torch.nn.Module, rows: Any) -> None:
        """Keeps rows that have a gradient now, until the next step or until gradients are set to zero."""
        if id(rows) in self._owners:
            return
        taken = set(module._parameters)
        name = next(name for i in range(len(taken) + 1) if (name := f"rows_{i}") not in taken)
        module._parameters[name] = rows
        self._owners[id(rows)] = module, name
        self.staged.append(rows)

    def drop_staged(self, all: bool) -> None:
        """Forgets staged rows: all, or those whose gradient was set to None."""
        for rows in [rows for rows in self.staged if all or rows.grad is None]:
            module, name = self._owners.pop(id(rows))
            module._parameters.pop(name, None)
        self.staged[:] = [rows for rows in self.staged if id(rows) in self._owners]

    def begin_step(self) -> None:
        """Checks that a step can be pushed now."""
        _job.check_training(self.program, self.scope)
        self._take_changes()

    def push(self, rate_factor: float, gradients: Mapping[str, torch.Tensor]) -> None:
        """Pushes the gradients of one step, and copies the new values into the parameters.

        Args:
            rate_factor: Multiplies the learning rates that the tables were created with.
            gradients: Of parameters, by name; other parameters rest.
        """
        by_table: dict[str, list[tuple[Any, Any]]] = {}
        for rows in self.staged:
            if rows.grad is not None:
                table, keys = rows._openfleet
                by_table.setdefault(table, []).append((keys, rows.grad.numpy()))
        pushed = []
        for table, parts in by_table.items():
            keys, sums = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts))
            pushed.append((table, keys, np.ascontiguousarray(sums).reshape(-1)))
        dense = [(name, np.ascontiguousarray(each.numpy()).reshape(-1)) for name, each in gradients.items()]
        self._take(self._native_executor().push_gradients(self.program._native, pushed, dense, rate_factor))

    def take_new_values(self) -> None:
        """Copies the newest values into the parameters and buffers of the model."""
        self.refresh(all=True)
        with torch.no_grad():
            for name, buffer in self._buffers().items():
                values = np.asarray(self.scope.var(name).get_tensor())
                buffer.copy_(torch.from_numpy(values).view(buffer.shape))

    def refresh(self, all: bool = False) -> None:
        """Copies the newest values into the parameters of the model: those that may have changed, or all."""
        self._take(self._native_executor().parameters(self.program._native, all))

    def _take(self, found: list[tuple[str, Any]]) -> None:
        """Copies values into parameters."""
        with torch.no_grad():
            for name, values in found:
                parameter = self._parameters[name]
                parameter.copy_(torch.from_numpy(values).view(parameter.shape))
        self._remember(name for name, _ in found)


def _refuse_other_parallelism() -> None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise RuntimeError(
            "`torch.distributed` has a process group of several processes: OpenFleet exchanges the gradients of "
            "its workers itself, so DistributedDataParallel would apply them twice\n\n"
            "hint: start the workers with `fleetrun`, without DistributedDataParallel"
        )
