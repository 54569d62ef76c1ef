"""`fluid.clip`: gradient clipping."""

from openfleet import compat
from openfleet.compat.paddle._parameters import ClipGradByGlobalNorm
from openfleet.static.clip import ClipGradByNorm, ClipGradByValue

__all__ = ["ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue"]
__getattr__ = compat.absent(__name__, __all__)
