"""Old spellings: scripts written for the original run with `import paddle` meaning `openfleet.compat.paddle`.

    python -m openfleet.compat script.py arguments...
    fleetrun --compat --server_num=2 --worker_num=2 script.py

What is absent raises a NotImplementedError that names it and the nearest thing that exists.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .. import _native

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
"""A directory in which `import paddle` finds `openfleet.compat.paddle`."""


def for_children() -> None:
    """Processes started from now on, and their children, find `paddle` too."""
    paths = [SITE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def install() -> None:
    """`import paddle` finds `openfleet.compat.paddle` in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "paddle" and not name.startswith("paddle."):
            return None
        real = f"{__name__}.{name}"
        try:
            module = importlib.import_module(real)
        except ModuleNotFoundError as error:
            if error.name is None or not real.startswith(error.name):
                raise
            raise NotImplementedError(f"`{name}` is not part of openfleet.compat") from None
        return importlib.machinery.ModuleSpec(name, _Loader(module), is_package=hasattr(module, "__path__"))


class _Loader(importlib.abc.Loader):
    """One module under two names."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        # The import machinery has just written the other name's.
        module.__spec__ = self._spec


def later(owner: str, name: str) -> Callable[..., Any]:
    """A function of the package that may not be there yet: looked for when it is called, not when it is imported."""

    def call(*args: Any, **kwargs: Any) -> Any:
        function = getattr(importlib.import_module(owner), name, None)
        if function is None:
            raise NotImplementedError(f"`{name}`: checkpoints are not available yet")
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{owner}.{name}`."
    return call


def absent(module: str, names: Sequence[str]) -> Callable[[str], Any]:
    """A module's `__getattr__` that says what is absent, and what is near."""
    known = [name for name in names if not name.startswith("_")]

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        where = module[module.index("paddle") :]
        raise NotImplementedError(f"`{where}.{name}` is not available\n\nhint: {_native.nearest(name, known)}")

    return missing
