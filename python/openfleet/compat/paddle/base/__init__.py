"""`paddle.base`: PaddlePaddle 2.6's name of `paddle.fluid`."""

from openfleet import compat

from ..fluid import *  # noqa: F403
from ..fluid import __all__
from . import core, framework

__getattr__ = compat.absent(__name__, __all__)
