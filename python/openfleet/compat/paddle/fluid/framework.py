"""`fluid.framework`."""

from openfleet import compat
from openfleet.static import Program, Variable, default_main_program, default_startup_program, program_guard

__all__ = ["Program", "Variable", "default_main_program", "default_startup_program", "program_guard"]
__getattr__ = compat.absent(__name__, __all__)
