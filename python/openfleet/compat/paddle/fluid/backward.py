"""`fluid.backward`."""

from openfleet import compat
from openfleet.static import append_backward, gradients

__all__ = ["append_backward", "gradients"]
__getattr__ = compat.absent(__name__, __all__)
