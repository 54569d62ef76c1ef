"""`paddle.reader`: functions that give an iterator of rows."""

from openfleet import compat
from openfleet.reader import batch, buffered, cache, chain, compose, firstn, map_readers, shuffle, xmap_readers

__all__ = ["batch", "buffered", "cache", "chain", "compose", "firstn", "map_readers", "shuffle", "xmap_readers"]
__getattr__ = compat.absent(__name__, __all__)
