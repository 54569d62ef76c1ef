"""`fluid.clip`: gradient clipping."""

from typing import Any

from openfleet import compat
from openfleet.compat.paddle._parameters import ClipGradByGlobalNorm
from openfleet.static.clip import ClipGradByNorm, ClipGradByValue

GradientClipByGlobalNorm, GradientClipByNorm, GradientClipByValue = (
    ClipGradByGlobalNorm,
    ClipGradByNorm,
    ClipGradByValue,
)


def set_gradient_clip(clip: Any, param_list: Any = None, program: Any = None) -> None:
    """Raises NotImplementedError: an optimizer clips its own gradients."""
    raise NotImplementedError("`fluid.clip.set_gradient_clip`\n\nhint: give the optimizer the argument `grad_clip`")


__all__ = ["ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue"]
__all__ += ["GradientClipByGlobalNorm", "GradientClipByNorm", "GradientClipByValue", "set_gradient_clip"]
__getattr__ = compat.absent(__name__, __all__)
