"""How the processes of a job work together."""

from openfleet import compat


class Mode:
    """How the processes of a job work together."""

    TRANSPILER = 1
    PSLIB = 2
    COLLECTIVE = 3


__all__ = ["Mode"]
__getattr__ = compat.absent(__name__, __all__)
