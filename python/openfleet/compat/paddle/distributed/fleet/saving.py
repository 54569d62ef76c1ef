"""Saving with the arguments of PaddlePaddle 2.x, whose modes are numbers:

0   everything
1   the changes since the existing checkpoint; everything if there is none
2   everything, as a base for later changes
3   everything, and then the end of a day for every row

PaddlePaddle does not save rows with low scores in modes 1 and 2. Here every row is saved, so that loading restores what
was trained; `shrink` removes stale rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import openfleet.fleet as _fleet

END_OF_DAY = 3
_NAMES = {0: "whole", 1: "delta", 2: "whole", END_OF_DAY: "whole"}


def _name(mode: int | str) -> str:
    if isinstance(mode, str):
        return mode
    if mode not in _NAMES:
        raise NotImplementedError(
            f"`mode={mode}` (caches and patches) is not available; modes are 0, 1, 2 and {END_OF_DAY}"
        )
    return _NAMES[mode]


def save_persistables(
    executor: Any, dirname: str | os.PathLike[str], main_program: Any = None, mode: int | str = 0
) -> None:
    """Saves every table of the job with its optimizer's state."""
    _fleet.save_persistables(executor, dirname, main_program, mode=_name(mode))
    if mode == END_OF_DAY:
        _fleet.shrink(end_of_day=True)


def save_one_table(table_id: int | str, path: str | os.PathLike[str], mode: int | str = 0) -> None:
    """Saves one table, by name or by its position among the sparse tables of the job."""
    name = table_id if isinstance(table_id, str) else _table(table_id)
    _fleet.save_one_table(name, path, mode=_name(mode))


def _table(number: int) -> str:
    names = list(_fleet.table_rows())
    if not 0 <= number < len(names):
        raise ValueError(f"`table_id` expects a number below {len(names)}, got {number}; the tables are {names}")
    return names[number]


def save(
    dirname: str | os.PathLike[str], feed: Sequence[Any] = (), fetch: Sequence[Any] = (), mode: int | str = 0
) -> None:
    """Saves an inference model that predicts `fetch` from `feed`; without them a checkpoint."""
    _fleet.save(dirname, feed, fetch, mode=_name(mode))


def save_inference_model(
    executor: Any,
    dirname: str | os.PathLike[str],
    feeded_var_names: Sequence[str],
    target_vars: Sequence[Any],
    main_program: Any = None,
    export_for_deployment: bool = True,
    mode: int | str = 0,
) -> None:
    """Saves an inference model for `target_vars`, completely in every mode."""
    _name(mode)
    _fleet.save_inference_model(executor, dirname, feeded_var_names, target_vars, main_program)


def load_model(path: str | os.PathLike[str], mode: int | str = 0) -> None:
    """Loads every table of the job from a checkpoint. The mode has no effect: a checkpoint lists its own parts."""
    _name(mode)
    _fleet.load_model(path)
