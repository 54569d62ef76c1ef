"""Programs that write the lines of a dataset, under the first version's path."""

from openfleet import compat
from openfleet.dataset import DataGenerator, MultiSlotDataGenerator, MultiSlotStringDataGenerator

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]
__getattr__ = compat.absent(__name__, __all__)
