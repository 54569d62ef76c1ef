"""Saving what a program has learnt, and taking it up again: one call, whether the tables are here or on servers.

A checkpoint is a directory, or a place in a bucket (`s3://bucket/prefix`): parameters, tables, the optimizer's state
and the program's own states (running statistics, counters of metrics), checked and all or nothing. It does not know how
many servers wrote it.

>>> import os, tempfile
>>> from openfleet import static
>>> with static.program_guard(static.Program(), static.Program()), static.unique_name.guard():
...     y = static.nn.fc(static.data("x", [None, 2]), size=1)
...     exe = static.Executor()
...     _ = exe.run(static.default_startup_program())
...     path = os.path.join(tempfile.mkdtemp(), "model")
...     _ = static.save(static.default_main_program(), path)
...     sorted(static.load_program_state(path))
['fc_0.b_0', 'fc_0.w_0']
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from .. import _native
from .._log import logger
from .executor import Executor
from .program import Program, Variable, default_main_program
from .scope import global_scope

Path = Union[str, "os.PathLike[str]"]


def save(
    program: Program,
    model_path: Path,
    *,
    executor: Executor | None = None,
    replace: bool = True,
    mode: str = "whole",
    only: Sequence[Variable | str] | None = None,
) -> dict[str, Any]:
    """Saves everything that outlives a step: parameters, tables, the optimizer's state, the program's states.

    A checkpoint that stands there is replaced, unless `replace=False` makes that an error, and stays whole if this
    fails. `mode="delta"` writes only the rows that have changed since the checkpoint that stands there, which becomes
    part of the new one. `only` names the tables, parameters and states that are wanted. Gives the manifest.
    """
    chosen = _chosen(_program(program), only, None) if only is not None else ()
    return _save(program, model_path, executor, chosen, replace, mode)


def load(
    program: Program,
    model_path: Path,
    executor: Executor | None = None,
    var_list: Sequence[Variable | str] | None = None,
    *,
    partial: bool = False,
) -> None:
    """Takes everything from a checkpoint, whoever wrote it; no startup program is needed before.

    What a program that trains expects and does not find, or finds with another shape or optimizer, is an error that
    names it; `partial=True` leaves it out. A program that does not train takes what it needs.
    """
    if var_list is not None:
        return load_vars(executor or Executor(), model_path, program, vars=var_list)
    native = (executor or Executor())._native(None, gives_values=True)
    native.load(_program(program)._native, os.fspath(model_path), partial=partial, tables_only=False)


def save_persistables(
    executor: Executor,
    dirname: Path,
    main_program: Program | None = None,
    filename: str | None = None,
    *,
    mode: str = "whole",
    only: Sequence[Variable | str] | None = None,
) -> None:
    """Saves everything that outlives a step. On a worker the job's servers write, all tables of the job.

    The first worker does it for all; nothing happens if the others do. `mode` and `only` are those of `save`.
    """
    _one_directory(filename)
    save(_program(main_program), dirname, executor=executor, mode=mode, only=only)


def load_persistables(
    executor: Executor, dirname: Path, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Takes everything that outlives a step from a checkpoint; the program may be another one with the same names."""
    _one_directory(filename)
    load(_program(main_program), dirname, executor)


def save_params(
    executor: Executor, dirname: Path, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Saves parameters and tables, without the program's states."""
    _one_directory(filename)
    program = _program(main_program)
    _save(program, dirname, executor, [name for name, kind in _persistables(program) if kind != "state"])


def load_params(
    executor: Executor, dirname: Path, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Takes parameters and tables from a checkpoint, and leaves the program's states."""
    _one_directory(filename)
    native = executor._native(None, gives_values=True)
    native.load(_program(main_program)._native, os.fspath(dirname), partial=False, tables_only=True)


def save_vars(
    executor: Executor,
    dirname: Path,
    main_program: Program | None = None,
    vars: Sequence[Variable | str] | None = None,
    predicate: Callable[[Variable], bool] | None = None,
    filename: str | None = None,
) -> None:
    """Saves the variables that are listed, or those that `predicate` likes."""
    _one_directory(filename)
    program = _program(main_program)
    _save(program, dirname, executor, _chosen(program, vars, predicate))


def load_vars(
    executor: Executor,
    dirname: Path,
    main_program: Program | None = None,
    vars: Sequence[Variable | str] | None = None,
    predicate: Callable[[Variable], bool] | None = None,
    filename: str | None = None,
) -> None:
    """Takes the dense variables that are listed, or those that `predicate` likes, from a checkpoint."""
    _one_directory(filename)
    program = _program(main_program)
    state = load_program_state(dirname, _chosen(program, vars, predicate))
    set_program_state(program, state)


def save_inference_model(
    path_prefix: Path,
    feed_vars: Variable | str | Sequence[Variable | str],
    fetch_vars: Variable | Sequence[Variable],
    executor: Executor,
    program: Program | None = None,
    *,
    onnx: bool = False,
) -> None:
    """Saves what predicting `fetch_vars` needs: the ops that lead to them, their parameters and rows.

    `feed_vars` are the data they are computed from. The optimizer's state is left out. On a worker the servers write;
    the first worker does it for all. `onnx` adds `model.onnx`, as `write_onnx` does.
    """
    fetch = [fetch_vars] if isinstance(fetch_vars, Variable) else list(fetch_vars)
    feed = [feed_vars] if isinstance(feed_vars, (Variable, str)) else list(feed_vars)
    if program is None:
        program = fetch[0].program if fetch else default_main_program()
    names = [_name(variable) for variable in feed], [_name(variable) for variable in fetch]
    saved = executor._native(None).save_inference_model(_program(program)._native, *names, os.fspath(path_prefix))
    if onnx and saved is not None:
        write_onnx(path_prefix)


def write_onnx(path_prefix: Path, inline_bytes: int = 256 << 20, pooled_inputs: bool = False) -> None:
    """Writes `model.onnx` beside a saved inference model, which then needs nothing of OpenFleet.

    Floats and integers are fed by their names; a slot of any length is `NAME.ids`, the ids of all rows, and
    `NAME.lengths`, how many each row has. Ids that the model does not know share one row, of zeros unless all rows
    began with the same number. Rows that take more than `inline_bytes` have a file of their own. It belongs to the
    model as it is now: saving another one there removes it.

    With `pooled_inputs` it is `model.pooled.onnx`, without tables: whoever keeps the rows elsewhere feeds what each
    embedding gives, by its name.
    """
    _native.write_onnx(os.fspath(path_prefix), inline_bytes, pooled_inputs)


def load_inference_model(path_prefix: Path, executor: Executor) -> list[Any]:
    """The program of a saved model, the names of what it is fed, and its targets, ready to run in the global scope.

    On a worker of a job the scope has to be another one than the job's (`scope_guard(Scope())`): there it would replace
    what the job has learnt. `fleet.load_model` does that.
    """
    from ..fleet import _job

    if _job.of_scope(global_scope()) is not None and _job.current().server_num() > 0:
        raise _native.OrderError(
            "a saved model would be loaded over the parameters that the job is training\n\n"
            "hint: load it under `scope_guard(Scope())`, or call `fleet.load_model` to continue from it"
        )
    native, feeds, targets = executor._native(None).load_inference_model(os.fspath(path_prefix))
    program = Program._of(native)
    return [program, feeds, [Variable(program, name) for name in targets]]


def load_program_state(model_path: Path, var_list: Iterable[Variable | str] | None = None) -> dict[str, Any]:
    """The dense values of a checkpoint as arrays by name, without the optimizer's state."""
    arrays = _native.read_dense(os.fspath(model_path))
    if var_list is None:
        return arrays
    names = [_name(variable) for variable in var_list]
    absent = [name for name in names if name not in arrays]
    if absent:
        raise ValueError(
            f"`{absent[0]}` is not in {os.fspath(model_path)}\n\nhint: {_native.nearest(absent[0], list(arrays))}"
        )
    return {name: arrays[name] for name in names}


def set_program_state(program: Program, state_dict: Mapping[str, Any]) -> None:
    """Gives variables of a program the values of a dict, in the global scope.

    Names that the program does not have are skipped, with one warning.
    """
    known = {name for name, _ in _persistables(program)}
    for name, value in state_dict.items():
        if name in known:
            global_scope().var(name).get_tensor().set(np.asarray(value))
    skipped = sorted(state_dict.keys() - known)
    if skipped:
        logger.warning(
            "`set_program_state` skipped %d of %d values: the program has no variable named `%s`",
            len(skipped),
            len(state_dict),
            "`, `".join(skipped[:5]),
        )


MODES = ("whole", "delta")


def _save(
    program: Program,
    path: Path,
    executor: Executor | None,
    only: Sequence[str],
    replace: bool = True,
    mode: str = "whole",
) -> dict[str, Any]:
    if mode not in MODES:
        raise ValueError(f'`mode` expects "whole" or "delta", got {mode!r}')
    native = (executor or Executor())._native(None)
    text = native.save(
        _program(program)._native, os.fspath(path), only=list(only), replace=replace, delta=mode == "delta"
    )
    manifest: dict[str, Any] = {} if text is None else json.loads(text)
    return manifest


def _program(program: Program | None) -> Program:
    program = default_main_program() if program is None else program
    if not isinstance(program, Program):
        raise TypeError(f"`main_program` expects a Program, got {type(program).__name__}")
    return program


def _chosen(
    program: Program, vars: Sequence[Variable | str] | None, predicate: Callable[[Variable], bool] | None
) -> list[str]:
    if vars is not None:
        return [_name(variable) for variable in vars]
    names = [name for name, _ in _persistables(program)]
    return [name for name in names if predicate is None or predicate(Variable(program, name))]


def _persistables(program: Program) -> list[tuple[str, str]]:
    kinds = [(name, program._native.variable(name)[2]) for name in program._native.names()]
    return [(name, kind) for name, kind in kinds if kind in ("parameter", "table", "state")]


def _name(variable: Variable | str) -> str:
    return variable if isinstance(variable, str) else variable.name


def _one_directory(filename: str | None) -> None:
    if filename is not None:
        raise ValueError("`filename`: a checkpoint is a directory of several files\n\nhint: leave `filename` out")
