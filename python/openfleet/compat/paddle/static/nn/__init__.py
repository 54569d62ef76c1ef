"""`paddle.static.nn`: layers that make their own parameters."""

from __future__ import annotations

from typing import Any

from openfleet import compat
from openfleet.static.initializer import Constant as _Constant
from openfleet.static.param_attr import with_defaults as _with_defaults
from openfleet.static.program import Variable

from ..._layers import (
    batch_norm,
    continuous_value_model,
    create_parameter,
    embedding,
    fc,
    layer_norm,
    sequence_conv,
    sequence_expand,
    sequence_expand_as,
    sequence_first_step,
    sequence_last_step,
    sequence_pad,
    sequence_pool,
    sequence_reverse,
    sequence_softmax,
    sequence_unpad,
    sparse_embedding,
)
from ..._layers import prelu as _prelu
from . import sequence_lod


def prelu(
    x: Variable, mode: str, param_attr: Any = None, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Returns x above 0 and x times a trained weight below: one weight for `all`, or one per `channel`."""
    sizes = {"all": 1, "channel": x.shape[1] if x.ndim > 1 else 1}
    if mode not in sizes:
        raise NotImplementedError(f"`mode` `{mode}` of `prelu`: there are `all` and `channel`")
    weight = create_parameter([sizes[mode]], attr=_with_defaults(param_attr, None, _Constant(0.25)))
    return _prelu(x, weight, data_format)


__all__ = [name for name in dir() if name[0].islower() and name not in ("annotations", "compat")]
__getattr__ = compat.absent(__name__, __all__)
