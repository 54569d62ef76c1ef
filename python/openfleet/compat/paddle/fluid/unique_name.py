"""`fluid.unique_name`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from openfleet import compat
from openfleet.compat._arguments import with_arguments as _with_arguments
from openfleet.static import program as _program
from openfleet.static import unique_name as _unique_name
from openfleet.static.unique_name import generate


def _no_generator(value: Any) -> None:
    if value is not None:
        raise NotImplementedError("`new_generator` of `unique_name.guard`: names count from 0 for each word")


@contextmanager
def _guard() -> Iterator[None]:
    """Counts names from 0 again inside the `with` block. Results of ops whose name is taken get the next free one."""
    with _unique_name.guard():
        net = _program._net()
        net.native = _FreeNames(net.native)
        yield


class _FreeNames:
    """A native net whose ops take the next name where theirs belongs to an op of the same program.

    PaddlePaddle lets two ops write to one variable, so a script may begin a guard within a program. Layers with
    parameters are as before: their names decide which parameters they share.
    """

    _WITH_PARAMETERS = frozenset(
        (
            *("auc", "batch_norm", "create_parameter", "cross", "ctr_dnn", "data", "dcn", "deepfm", "dense_embedding"),
            *("embedding", "fc", "global_variable", "layer_norm", "skip_gram", "slot", "unique_name", "wide_deep"),
            "word2vec",
        )
    )

    def __init__(self, native: Any) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._native, name)
        if name in ("with_fresh_names", "with_programs"):
            return lambda *args: _FreeNames(method(*args))
        return method if name in self._WITH_PARAMETERS else _with_free_name(method)


def _with_free_name(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        taken = None
        while True:
            try:
                return method(*args)
            except ValueError as error:
                found = re.match(r"a variable named `(.*\.tmp_\d+)` already exists", str(error))
                # Each attempt takes the next number; the same name again would be another problem.
                if found is None or found[1] == taken:
                    raise
                taken = found[1]

    return call


guard = _with_arguments(_guard, new_generator=(None, _no_generator))
__all__ = ["generate", "guard"]
__getattr__ = compat.absent(__name__, __all__)
