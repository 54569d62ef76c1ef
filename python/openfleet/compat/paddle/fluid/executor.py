"""`fluid.executor`."""

from openfleet import compat
from openfleet.compat.paddle._executor import Executor
from openfleet.static import FetchHandler, global_scope, scope_guard

__all__ = ["Executor", "FetchHandler", "global_scope", "scope_guard"]
__getattr__ = compat.absent(__name__, __all__)
