"""`paddle.incubate`."""

from openfleet import compat

from . import layers

__all__ = ["layers"]
__getattr__ = compat.absent(__name__, __all__)
