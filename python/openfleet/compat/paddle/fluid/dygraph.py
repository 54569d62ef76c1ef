"""`fluid.dygraph`: PaddlePaddle's dynamic mode, which does not run here."""

from __future__ import annotations

from openfleet import compat

from .. import _dynamic
from ..distributed.parallel import ParallelEnv

guard = _dynamic.refusing_function("paddle.fluid.dygraph.guard()", f"leave it out; {_dynamic.MINIMIZE}")
to_variable = _dynamic.refusing_function("paddle.fluid.dygraph.to_variable()", _dynamic.FEED)
save_dygraph = _dynamic.refusing_function("paddle.fluid.dygraph.save_dygraph()", _dynamic.SAVE)
load_dygraph = _dynamic.refusing_function("paddle.fluid.dygraph.load_dygraph()", _dynamic.LOAD)

__all__ = ["ParallelEnv", "guard", "load_dygraph", "save_dygraph", "to_variable"]
__getattr__ = compat.absent(__name__, __all__)
