"""`paddle.incubate.layers`."""

from __future__ import annotations

from collections.abc import Sequence

from openfleet import compat
from openfleet.static.program import Variable

from .._layers import continuous_value_model, sequence_pool


def fused_seqpool_cvm(
    input: Sequence[Variable],
    pool_type: str,
    cvm: Variable,
    pad_value: float = 0.0,
    use_cvm: bool = True,
    cvm_offset: int = 2,
) -> list[Variable]:
    """`continuous_value_model` of the sum of each slot."""
    if pool_type.lower() != "sum" or cvm_offset != 2:
        raise NotImplementedError(
            "`fused_seqpool_cvm` of another `pool_type` than `sum`, or another `cvm_offset` than 2"
        )
    return [continuous_value_model(sequence_pool(one, "sum", pad_value=pad_value), cvm, use_cvm) for one in input]


__all__ = ["fused_seqpool_cvm"]
__getattr__ = compat.absent(__name__, __all__)
