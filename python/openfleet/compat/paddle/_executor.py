"""`Executor`, and what is fed to it, with PaddlePaddle's arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openfleet import static as _static
from openfleet.compat._arguments import with_arguments as _with_arguments
from openfleet.static import Program, Scope, Variable
from openfleet.static.feed import elements_per_row as _elements_per_row

from . import _feeding
from .distributed.fleet.base.distributed_strategy import say_no_dump as _say_no_dump
from .fluid.compiler import program_of as _program_of


class Executor(_static.Executor):
    """Runs programs. The place, and options about the names of variables and caches, have no effect."""

    def __init__(self, place: Any = None) -> None:
        super().__init__()
        if place is not None:
            self.place = place

    def run(
        self,
        program: Any = None,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        fetch_list: Sequence[Variable | str] | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Runs a program on one batch. Values are always arrays."""
        program = _program_of(program)
        if isinstance(feed, (list, tuple)):
            if len(feed) > 1:
                raise NotImplementedError(
                    f"`feed` of `exe.run` with {len(feed)} batches, one per device: there is one device\n\n"
                    "hint: run each batch by itself"
                )
            feed = feed[0] if feed else None
        if not feed:
            feed = _feeding.next_feed(_static.default_main_program() if program is None else program)
        if feed:
            program = _as_fed(_static.default_main_program() if program is None else program, feed)
        return super().run(program, feed, fetch_list, scope=scope)

    def _pass(self, infer: bool, program: Any, *args: Any) -> Any:
        program = _program_of(program)
        options = getattr(_static.default_main_program() if program is None else program, "_fleet_opt", None) or {}
        if options.get("dump_fields_path") and (options.get("dump_fields") or options.get("dump_param")):
            _say_no_dump()
        return super()._pass(infer, program, *args)


def _as_fed(program: Program, feed: Mapping[str, Any]) -> Program:
    """The program with data of as many dimensions as are fed.

    PaddlePaddle computes with the arrays that it is fed, whatever shape was declared; some models of PaddleRec declare
    another number of dimensions.
    """
    others = {}
    for name, value in feed.items():
        if not isinstance(value, np.ndarray) or value.ndim < 2:
            continue
        declared, _, _, is_slot, _ = program._native.variable(name)
        if not is_slot and len(declared) != value.ndim and _elements_per_row(declared) != math.prod(value.shape[1:]):
            others[name] = value.ndim
    if not others:
        return program
    # One copy for each number of dimensions: their sizes are read when it runs.
    known = program.__dict__.setdefault("_as_fed", {})
    key = tuple(sorted(others.items()))
    if key not in known:
        native = program._native
        for name, count in others.items():
            native = native.with_data_shape(name, [-1] * count)
        known[key] = Program._of(native)
    return known[key]


class DataFeeder(_static.DataFeeder):
    """Turns rows into one array per variable."""

    def __init__(self, feed_list: Sequence[Variable | str], place: Any = None, program: Program | None = None) -> None:
        super().__init__(feed_list, program=program)


create_lod_tensor = _with_arguments(_static.create_lod_tensor, place=None)
