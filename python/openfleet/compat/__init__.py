"""Runs scripts that were written for PaddlePaddle: `import paddle` finds `openfleet.compat.paddle`.

    python -m openfleet.compat script.py arguments...
    fleetrun --compat --server_num=2 --worker_num=2 script.py

Every `import` succeeds: a name or module that is not here is a placeholder, which raises a NotImplementedError where
it is used, with its name and the most similar one that exists.
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
            module = _absent_module(real)
        is_package = getattr(module.__spec__, "submodule_search_locations", []) is not None
        if not hasattr(module, "__path__"):
            # A module of PaddlePaddle that is a package there: an import of what is inside it comes here too.
            module.__path__ = []
        return importlib.machinery.ModuleSpec(name, _Loader(module), is_package=is_package)


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
    """Returns a `__getattr__` for a module: a missing name is a placeholder that raises where it is used.

    The name of a module inside it imports that module: PaddlePaddle's packages import all of theirs.
    """
    known = [name for name in names if not name.startswith("_")]
    made: dict[str, Any] = {}

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(sys.modules.get(module), "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None:
            return importlib.import_module(f"{module}.{name}")
        if name not in made:
            where = module[module.index("paddle") :]
            hint = _native.nearest(name, known) if known else f"the module `{where}` is not part of openfleet.compat"
            made[name] = _placeholder(f"{where}.{name}", hint)
        return made[name]

    return missing


class _Absent(type):
    """The type of placeholders. They are classes, so that a script can name them as a base or in `isinstance`."""

    _path: str
    _hint: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"`{cls._path}` is not available\n\nhint: {cls._hint}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(f"{cls._path}.{name}", cls._hint)

    def __bool__(cls) -> bool:
        return bool(cls())

    def __repr__(cls) -> str:
        return f"<`{cls._path}`, which is not available>"


def _placeholder(path: str, hint: str) -> Any:
    return _Absent(path.rpartition(".")[2], (), {"_path": path, "_hint": hint})


def _absent_module(real: str) -> ModuleType:
    """A module of PaddlePaddle that is not here. All its names are placeholders."""
    if real not in sys.modules:
        module = ModuleType(real, "A module that is not part of openfleet.compat.")
        module.__path__ = []
        module.__getattr__ = absent(real, [])
        sys.modules[real] = module
    return sys.modules[real]
