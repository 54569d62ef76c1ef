"""`fluid.executor`."""

from openfleet import compat
from openfleet.static import Executor, FetchHandler, global_scope, scope_guard

__all__ = ["Executor", "FetchHandler", "global_scope", "scope_guard"]
__getattr__ = compat.absent(__name__, __all__)
