"""`paddle.distributed.fleet.base`."""

from . import role_maker

__all__ = ["role_maker"]
