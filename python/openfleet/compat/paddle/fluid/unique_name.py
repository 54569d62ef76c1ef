"""`fluid.unique_name`."""

from typing import Any

from openfleet import compat
from openfleet.compat._arguments import with_arguments as _with_arguments
from openfleet.static import unique_name as _unique_name
from openfleet.static.unique_name import generate


def _no_generator(value: Any) -> None:
    if value is not None:
        raise NotImplementedError("`new_generator` of `unique_name.guard`: names count from 0 for each word")


guard = _with_arguments(_unique_name.guard, new_generator=(None, _no_generator))
__all__ = ["generate", "guard"]
__getattr__ = compat.absent(__name__, __all__)
