"""`paddle.regularizer`: weight decay."""

from openfleet import compat
from openfleet.static.regularizer import L1Decay, L2Decay

__all__ = ["L1Decay", "L2Decay"]
__getattr__ = compat.absent(__name__, __all__)
