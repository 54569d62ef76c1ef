"""`paddle.reader`: functions that give an iterator of rows."""

from openfleet import compat
from openfleet.reader import batch, chain, firstn, map_readers, shuffle

__all__ = ["batch", "chain", "firstn", "map_readers", "shuffle"]
__getattr__ = compat.absent(__name__, __all__)
