"""`fleet.utils`: file systems, and evaluation with the rows of servers."""

from openfleet import compat

from . import fs, ps_util
from .fs import HDFSClient, LocalFS
from .ps_util import DistributedInfer

__all__ = ["DistributedInfer", "HDFSClient", "LocalFS", "fs", "ps_util"]
__getattr__ = compat.absent(__name__, __all__)
