"""`fluid.transpiler.ps_dispatcher`: which server gets which block. A job takes one as its `split_method`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from openfleet import compat


class PSDispatcher:
    """Assigns blocks to servers. Subclasses override `dispatch`."""

    def __init__(self, pserver_endpoints: Sequence[str] = ()) -> None:
        self._eps, self._step = list(pserver_endpoints), 0

    @property
    def eps(self) -> list[str]:
        """The `host:port` of every server."""
        return self._eps

    def reset(self) -> None:
        """Begins with the first server again."""
        self._step = 0

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        """Returns the server of each block."""
        raise NotImplementedError(f"`dispatch` of {type(self).__name__}")


class RoundRobin(PSDispatcher):
    """Assigns blocks to servers in turn."""

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        """Returns the server of each block, and continues with the next server at the next call."""
        first, self._step = self._step, self._step + len(varlist)
        return [self._eps[number % len(self._eps)] for number in range(first, self._step)]


class HashName(PSDispatcher):
    """Assigns blocks to servers by a hash of their names."""

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        """Returns the server of each block: the same one for the same name."""
        names = [one if isinstance(one, str) else one.name for one in varlist]
        return [self._eps[zlib.crc32(name.encode()) % len(self._eps)] for name in names]


__all__ = ["HashName", "PSDispatcher", "RoundRobin"]
__getattr__ = compat.absent(__name__, __all__)
