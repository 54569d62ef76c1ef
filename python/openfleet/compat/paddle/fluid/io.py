"""`fluid.io`: readers, and saving and loading by the names of the first version.

`openfleet.static` and `openfleet.fleet` own the format; these only pass on.
"""

from openfleet import compat
from openfleet.reader import batch, chain, firstn, map_readers, shuffle

from ..io import DataLoader

load = compat.later("openfleet.static", "load")
load_inference_model = compat.later("openfleet.static", "load_inference_model")
load_params = compat.later("openfleet.static", "load_params")
load_persistables = compat.later("openfleet.static", "load_persistables")
load_program_state = compat.later("openfleet.static", "load_program_state")
load_vars = compat.later("openfleet.static", "load_vars")
save = compat.later("openfleet.static", "save")
save_inference_model = compat.later("openfleet.static", "save_inference_model")
save_params = compat.later("openfleet.static", "save_params")
save_persistables = compat.later("openfleet.static", "save_persistables")
save_vars = compat.later("openfleet.static", "save_vars")

__all__ = [name for name in dir() if not name.startswith("_") and name != "compat"]
__getattr__ = compat.absent(__name__, __all__)
