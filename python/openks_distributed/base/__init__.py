"""Role makers, modes and base classes of both kinds of job."""

from . import BaseDistributed, RoleMaker, mode

__all__ = ["BaseDistributed", "RoleMaker", "mode"]
