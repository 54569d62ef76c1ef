"""`static.nn.sequence_lod`: layers on sequences, the rows of slots."""

from openfleet import compat

from ..._layers import (
    sequence_conv,
    sequence_expand,
    sequence_expand_as,
    sequence_first_step,
    sequence_last_step,
    sequence_mask,
    sequence_pad,
    sequence_pool,
    sequence_reverse,
    sequence_softmax,
    sequence_unpad,
)

__all__ = [
    "sequence_conv",
    "sequence_expand",
    "sequence_expand_as",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_mask",
    "sequence_pad",
    "sequence_pool",
    "sequence_reverse",
    "sequence_softmax",
    "sequence_unpad",
]
__getattr__ = compat.absent(__name__, __all__)
