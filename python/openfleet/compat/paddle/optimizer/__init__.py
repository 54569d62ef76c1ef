"""`paddle.optimizer`: update rules, and schedules in `lr`."""

from openfleet import compat
from openfleet.static.optimizer import SGD, Adagrad, Adam, Momentum, Optimizer, RMSProp

from . import lr

__all__ = ["SGD", "Adagrad", "Adam", "Momentum", "Optimizer", "RMSProp", "lr"]
__getattr__ = compat.absent(__name__, __all__)
