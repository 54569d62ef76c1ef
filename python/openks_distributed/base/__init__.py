"""What both ways to train have: role makers, modes, and the classes the others derive from."""

from . import BaseDistributed, RoleMaker, mode

__all__ = ["BaseDistributed", "RoleMaker", "mode"]
