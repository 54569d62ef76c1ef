"""`fluid.regularizer`."""

from openfleet import compat
from openfleet.static.regularizer import L1Decay, L2Decay

L1DecayRegularizer = L1Decay
L2DecayRegularizer = L2Decay
__all__ = ["L1Decay", "L1DecayRegularizer", "L2Decay", "L2DecayRegularizer"]
__getattr__ = compat.absent(__name__, __all__)
