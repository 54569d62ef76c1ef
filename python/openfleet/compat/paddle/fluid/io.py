"""`fluid.io`: checkpoints are not available yet."""

from typing import Any

from openfleet import compat
from openfleet.reader import batch, shuffle


def save_persistables(executor: Any, dirname: str, main_program: Any = None, filename: Any = None) -> None:
    """Not available yet."""
    raise NotImplementedError("`fluid.io.save_persistables`: checkpoints are not available yet")


def load_persistables(executor: Any, dirname: str, main_program: Any = None, filename: Any = None) -> None:
    """Not available yet."""
    raise NotImplementedError("`fluid.io.load_persistables`: checkpoints are not available yet")


__all__ = ["batch", "load_persistables", "save_persistables", "shuffle"]
__getattr__ = compat.absent(__name__, __all__)
