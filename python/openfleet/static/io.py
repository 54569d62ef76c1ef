"""Saves and loads models: the same calls whether the tables are in this process or on servers.

A checkpoint is a directory, or a prefix in a bucket (`s3://bucket/prefix`). It holds parameters, tables, the
optimizer's state and the program's own states (running statistics, counters of metrics). It has checksums, is written
completely or not at all, and can be loaded by any number of servers.

>>> import os, tempfile
>>> y = static.nn.fc(static.data("x", [None, 2]), size=1)
>>> _ = exe.run(static.default_startup_program())
>>> path = os.path.join(tempfile.mkdtemp(), "model")
>>> _ = static.save(static.default_main_program(), path)
>>> sorted(static.load_program_state(path))
['fc_0.b_0', 'fc_0.w_0']
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from .. import _native
from .._deprecated import Deprecated, accepts_deprecated
from .._log import logger
from .executor import Executor
from .program import Program, Variable, default_main_program
from .scope import global_scope

Path = Union[str, "os.PathLike[str]"]


def check_filename(filename: str | None) -> None:
    """Raises ValueError for PaddlePaddle's option to save into one file."""
    if filename is not None:
        raise ValueError("`filename`: a checkpoint is a directory of several files\n\nhint: leave `filename` out")


def _filename(value: Any) -> dict[str, Any]:
    check_filename(value)
    return {}


_FILENAME = Deprecated("leave it out, a checkpoint is a directory of several files", _filename)


def save(
    program: Program,
    model_path: Path,
    *,
    executor: Executor | None = None,
    replace: bool = True,
    mode: str = "whole",
    only: Sequence[Variable | str] | None = None,
) -> dict[str, Any]:
    """Saves a checkpoint: parameters, tables, the optimizer's state and the program's states.

    On a worker of a job the servers write all tables of the job, and only the first worker's call has an effect. An
    existing checkpoint is replaced once the new one is complete; if saving fails, the old one stays as it was.

    Args:
        program: The program whose values are saved, from the global scope.
        model_path: A directory, or `s3://bucket/prefix`.
        executor: The executor to save with; a new one by default.
        replace: False raises an error where a checkpoint exists.
        mode: `whole`, or `delta` to write only the rows that changed since the existing checkpoint, which becomes part
            of the new one.
        only: The tables, parameters and states to save, as variables or names; all by default.

    Returns:
        The manifest of the checkpoint; an empty dict on a worker that is not the first.

    Raises:
        FileExistsError: A checkpoint exists and `replace` is False.
        OSError: The checkpoint cannot be written.
        ValueError: There is no such mode.

    >>> import tempfile
    >>> y = static.nn.fc(static.data("x", [None, 2]), size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> manifest = static.save(static.default_main_program(), tempfile.mkdtemp() + "/model")
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
    """Loads the values of a program from a checkpoint into the global scope. No startup program has to run before.

    Args:
        program: The program. One that trains needs everything it would save; one that does not train needs its
            parameters only.
        model_path: A directory, or `s3://bucket/prefix`.
        executor: The executor to load with; a new one by default.
        var_list: Dense variables, or names, to load; everything by default.
        partial: Skips values that are missing, or that have another shape or optimizer, instead of raising.

    Raises:
        FileNotFoundError: There is no checkpoint.
        openfleet.CheckpointError: It is damaged, or a value is missing or does not fit.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> _ = static.save(static.default_main_program(), path)
    >>> static.load(static.default_main_program(), path)
    """
    if var_list is not None:
        return load_vars(executor or Executor(), model_path, program, vars=var_list)
    native = (executor or Executor())._for_scope(None, gives_values=True)
    native.load(_program(program)._native, os.fspath(model_path), partial=partial, tables_only=False)


@accepts_deprecated(filename=_FILENAME)
def save_persistables(
    executor: Executor,
    dirname: Path,
    main_program: Program | None = None,
    *,
    mode: str = "whole",
    only: Sequence[Variable | str] | None = None,
) -> None:
    """Saves a checkpoint, as `save` does, by PaddlePaddle's name and argument order.

    `mode` and `only` are those of `save`.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.save_persistables(exe, path)
    """
    save(_program(main_program), dirname, executor=executor, mode=mode, only=only)


@accepts_deprecated(filename=_FILENAME)
def load_persistables(executor: Executor, dirname: Path, main_program: Program | None = None) -> None:
    """Loads everything from a checkpoint, as `load` does. The program may be another one with the same names.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.save_persistables(exe, path)
    >>> static.load_persistables(exe, path)
    """
    load(_program(main_program), dirname, executor)


@accepts_deprecated(filename=_FILENAME)
def save_params(executor: Executor, dirname: Path, main_program: Program | None = None) -> None:
    """Saves parameters and tables without the program's states, such as running statistics.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.save_params(exe, path)
    """
    program = _program(main_program)
    _save(program, dirname, executor, [name for name, kind in _persistables(program) if kind != "state"])


@accepts_deprecated(filename=_FILENAME)
def load_params(executor: Executor, dirname: Path, main_program: Program | None = None) -> None:
    """Loads parameters and tables from a checkpoint, and leaves the program's states as they are.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.save_params(exe, path)
    >>> static.load_params(exe, path)
    """
    native = executor._for_scope(None, gives_values=True)
    native.load(_program(main_program)._native, os.fspath(dirname), partial=False, tables_only=True)


@accepts_deprecated(filename=_FILENAME)
def save_vars(
    executor: Executor,
    dirname: Path,
    main_program: Program | None = None,
    vars: Sequence[Variable | str] | None = None,
    predicate: Callable[[Variable], bool] | None = None,
) -> None:
    """Saves the listed variables, or those for which `predicate(variable)` is true.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.save_vars(exe, path, vars=["fc_0.w_0"])
    >>> list(static.load_program_state(path))
    ['fc_0.w_0']
    """
    program = _program(main_program)
    _save(program, dirname, executor, _chosen(program, vars, predicate))


@accepts_deprecated(filename=_FILENAME)
def load_vars(
    executor: Executor,
    dirname: Path,
    main_program: Program | None = None,
    vars: Sequence[Variable | str] | None = None,
    predicate: Callable[[Variable], bool] | None = None,
) -> None:
    """Loads the listed dense variables, or those for which `predicate(variable)` is true, from a checkpoint.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.save_persistables(exe, path)
    >>> static.load_vars(exe, path, vars=["fc_0.b_0"])
    """
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
    """Saves an inference model: the ops that compute `fetch_vars`, their parameters and embedding rows.

    The optimizer's state is not saved. On a worker of a job the servers write their rows, and only the first worker's
    call has an effect.

    Args:
        path_prefix: A directory, or `s3://bucket/prefix`.
        feed_vars: The data variables, or names, that predictions are computed from.
        fetch_vars: The variables to predict.
        executor: The executor whose values are saved.
        program: The program; by default the one of `fetch_vars`.
        onnx: Whether to write `model.onnx` too, as `write_onnx` does.

    >>> import tempfile
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1, activation="sigmoid")
    >>> _ = exe.run(static.default_startup_program())
    >>> path = tempfile.mkdtemp() + "/model"
    >>> static.save_inference_model(path, [x], [y], exe)
    >>> static.Predictor(path).feeds
    ['x']
    """
    fetch = [fetch_vars] if isinstance(fetch_vars, Variable) else list(fetch_vars)
    feed = [feed_vars] if isinstance(feed_vars, (Variable, str)) else list(feed_vars)
    if program is None:
        program = fetch[0].program if fetch else default_main_program()
    names = [_name(variable) for variable in feed], [_name(variable) for variable in fetch]
    saved = executor._for_scope(None).save_inference_model(_program(program)._native, *names, os.fspath(path_prefix))
    if onnx and saved is not None:
        write_onnx(path_prefix)


def write_onnx(path_prefix: Path, inline_bytes: int = 256 << 20, pooled_inputs: bool = False) -> None:
    """Writes `model.onnx` beside a saved inference model, for runtimes without OpenFleet.

    Floats and integers are fed by their names. A slot is two inputs: `NAME.ids`, the ids of all rows, and
    `NAME.lengths`, the number of ids per row. Unknown ids share one row, which is zeros unless all rows started with
    the same number. Saving another model to the same path removes the file.

    Args:
        path_prefix: Where `save_inference_model` saved the model.
        inline_bytes: Embedding rows larger than this have a file of their own beside `model.onnx`.
        pooled_inputs: Writes `model.pooled.onnx` without tables instead: its inputs are the results of the embeddings,
            by their names, for services that keep the rows elsewhere.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.save_inference_model(path, [x], [y], exe)
    >>> static.write_onnx(path)
    >>> os.path.exists(os.path.join(path, "model.onnx"))
    True
    """
    _native.write_onnx(os.fspath(path_prefix), inline_bytes, pooled_inputs)


def load_inference_model(path_prefix: Path, executor: Executor) -> list[Any]:
    """Loads an inference model into the global scope, ready to run.

    On a worker of a job, load it into a scope of its own (`scope_guard(Scope())`): in the job's scope it would
    overwrite the parameters in training. `fleet.load_model` continues training from a model.

    Returns:
        A list of the program, the names of its inputs, and its target variables.

    Raises:
        openfleet.OrderError: The global scope is the one that a job trains in.
        FileNotFoundError: There is no model.
        openfleet.CheckpointError: The model is damaged.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.save_inference_model(path, [x], [y], exe)
    >>> program, feeds, targets = static.load_inference_model(path, exe)
    >>> feeds
    ['x']
    """
    from ..fleet import _job

    if _job.of_scope(global_scope()) is not None and _job.current().server_num() > 0:
        raise _native.OrderError(
            "a saved model would be loaded over the parameters that the job is training\n\n"
            "hint: load it under `scope_guard(Scope())`, or call `fleet.load_model` to continue from it"
        )
    native, feeds, targets = executor._for_scope(None).load_inference_model(os.fspath(path_prefix))
    program = Program._of(native)
    return [program, feeds, [Variable(program, name) for name in targets]]


def load_program_state(model_path: Path, var_list: Iterable[Variable | str] | None = None) -> dict[str, Any]:
    """Reads the dense values of a checkpoint as arrays by name, without the optimizer's state.

    Raises:
        ValueError: A variable of `var_list` is not in the checkpoint.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.save_persistables(exe, path)
    >>> static.load_program_state(path)["fc_0.w_0"].shape
    (2, 1)
    """
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
    """Sets variables of a program in the global scope to the arrays of a dict, by name.

    Names that the program does not have are skipped, with one warning.

    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1)
    >>> _ = exe.run(static.default_startup_program())
    >>> static.set_program_state(static.default_main_program(), {"fc_0.b_0": np.ones(1, "float32")})
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
    native = (executor or Executor())._for_scope(None)
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
