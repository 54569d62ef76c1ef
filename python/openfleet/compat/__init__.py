"""Runs scripts that were written for PaddlePaddle: `import paddle` finds `openfleet.compat.paddle`.

    python -m openfleet.compat script.py arguments...
    fleetrun --compat --server_num=2 --worker_num=2 script.py

A missing name raises a NotImplementedError with that name and the most similar one that exists.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType
from typing import Any

from .. import _native

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
"""A directory in which `import paddle` finds `openfleet.compat.paddle`."""


def for_children() -> None:
    """Lets processes that are started from now on, and their children, `import paddle` too."""
    paths = [SITE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def alias_package(alias: str, package: str) -> None:
    """Lets a package and all its modules be imported under another name: the same objects, not copies."""
    real = importlib.import_module(package)
    names = [module.name for module in pkgutil.walk_packages(real.__path__, f"{package}.")]
    for name in [package, *names]:
        sys.modules[alias + name[len(package) :]] = importlib.import_module(name)


def install() -> None:
    """Makes `import paddle` find `openfleet.compat.paddle` in this process. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "paddle" and not name.startswith("paddle."):
            return None
        real = f"{__name__}.{name}"
        if name.endswith(".__main__"):
            # `python -m` runs it; importing it here would run it too.
            found = importlib.util.find_spec(real)
            origin = None if found is None else found.origin
            return None if origin is None else importlib.util.spec_from_file_location(name, origin)
        try:
            module = importlib.import_module(real)
        except ModuleNotFoundError as error:
            if error.name is None or not real.startswith(error.name):
                raise
            raise NotImplementedError(f"`{name}` is not part of openfleet.compat") from None
        return importlib.machinery.ModuleSpec(name, _Loader(module), is_package=hasattr(module, "__path__"))


class _Loader(importlib.abc.Loader):
    """Gives one module two names."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def get_code(self, name: str) -> CodeType | None:
        """The code of the module, which `python -m` runs."""
        loader: Any = None if self._spec is None else self._spec.loader
        return None if loader is None else loader.get_code(loader.name)

    def exec_module(self, module: ModuleType) -> None:
        # The import machinery has just overwritten it with the spec of the other name.
        module.__spec__ = self._spec


def absent(module: str, names: Sequence[str]) -> Callable[[str], Any]:
    """Returns a `__getattr__` for a module that names what is missing, and the most similar name."""
    known = [name for name in names if not name.startswith("_")]

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        where = module[module.index("paddle") :]
        raise NotImplementedError(f"`{where}.{name}` is not available\n\nhint: {_native.nearest(name, known)}")

    return missing
