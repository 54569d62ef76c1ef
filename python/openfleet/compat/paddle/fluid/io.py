"""`fluid.io`: readers, and saving and loading by the names of PaddlePaddle 1.x.

The format of checkpoints is that of `openfleet.static`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from openfleet import compat
from openfleet.compat._arguments import with_arguments as _with_arguments
from openfleet.reader import batch, chain, firstn, map_readers, shuffle
from openfleet.static import io as _io
from openfleet.static.io import load, load_program_state, save, set_program_state

from ..io import DataLoader, PyReader


def _one_directory(name: str) -> Any:
    return _with_arguments(getattr(_io, name), filename=(None, _io.check_filename))


load_params, load_persistables, load_vars = map(_one_directory, ("load_params", "load_persistables", "load_vars"))
save_params, save_persistables, save_vars = map(_one_directory, ("save_params", "save_persistables", "save_vars"))


def is_persistable(var: Any) -> bool:
    """Returns whether the scope keeps the value of a variable between steps."""
    return bool(var.persistable)


def is_parameter(var: Any) -> bool:
    """Returns whether a variable is a dense parameter or a sparse table."""
    return var.kind in ("parameter", "table")


def save_inference_model(
    dirname: str | os.PathLike[str],
    feeded_var_names: Sequence[str],
    target_vars: Sequence[Any],
    executor: Any,
    main_program: Any = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
) -> list[str]:
    """Saves an inference model for `target_vars`. Returns their names."""
    for name, given in (("model_filename", model_filename), ("params_filename", params_filename)):
        if given is not None:
            raise ValueError(f"`{name}`: a model is a directory of several files\n\nhint: leave `{name}` out")
    if not export_for_deployment or program_only:
        raise NotImplementedError("`export_for_deployment=False` and `program_only=True`")
    _io.save_inference_model(dirname, feeded_var_names, target_vars, executor, program=main_program)
    return [_io._name(variable) for variable in target_vars]


def load_inference_model(
    dirname: str | os.PathLike[str],
    executor: Any,
    model_filename: str | None = None,
    params_filename: str | None = None,
    pserver_endpoints: Any = None,
) -> list[Any]:
    """Returns a list of the program, the names of its inputs, and its target variables."""
    for name, given in (("model_filename", model_filename), ("params_filename", params_filename)):
        if given is not None:
            raise ValueError(f"`{name}`: a model is a directory of several files\n\nhint: leave `{name}` out")
    if pserver_endpoints is not None:
        raise NotImplementedError("`pserver_endpoints`: a model is loaded from its directory")
    return _io.load_inference_model(dirname, executor)


_HELPERS = ("Any", "Sequence", "annotations", "compat", "os")
__all__ = [name for name in dir() if not name.startswith("_") and name not in _HELPERS]
__getattr__ = compat.absent(__name__, __all__)
