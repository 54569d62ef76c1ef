"""`fluid.input`: layers on ids that keep their last dimension."""

from __future__ import annotations

from openfleet import compat
from openfleet.static import nn as _nn
from openfleet.static.program import Variable

from .._layers import embedding


def one_hot(input: Variable, depth: int, allow_out_of_range: bool = False) -> Variable:
    """Integers as rows with a single 1: `[..]` becomes `[.., depth]`."""
    return _nn.one_hot(input, depth, allow_out_of_range)


__all__ = ["embedding", "one_hot"]
__getattr__ = compat.absent(__name__, __all__)
