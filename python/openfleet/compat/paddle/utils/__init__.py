"""`paddle.utils`."""

from __future__ import annotations

import importlib
from typing import Any

from openfleet import compat

from ..fluid import unique_name


def try_import(module_name: str, err_msg: str | None = None) -> Any:
    """Imports a module, with a message of the caller's if it is not installed."""
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        raise ImportError(err_msg or f"`{module_name}` is not installed: `pip install {module_name}`") from error


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Accepts every version: the names of PaddlePaddle 2.6 are here."""


def run_check() -> None:
    """Says that the package works."""
    print("OpenFleet is installed and provides PaddlePaddle's names.")


__all__ = ["require_version", "run_check", "try_import", "unique_name"]
__getattr__ = compat.absent(__name__, __all__)
