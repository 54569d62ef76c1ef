"""`static.nn.sequence_lod`: layers on the rows of a slot."""

from openfleet import compat

from ..._layers import sequence_mask, sequence_pool

__all__ = ["sequence_mask", "sequence_pool"]
__getattr__ = compat.absent(__name__, __all__)
