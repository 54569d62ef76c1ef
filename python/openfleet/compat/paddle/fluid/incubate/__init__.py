"""`fluid.incubate`."""

from openfleet import compat

__all__: list[str] = []
__getattr__ = compat.absent(__name__, __all__)
