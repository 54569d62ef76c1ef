"""How the processes of a job work together."""

from openfleet.compat.paddle.fluid.incubate.fleet.base.mode import Mode

__all__ = ["Mode"]
