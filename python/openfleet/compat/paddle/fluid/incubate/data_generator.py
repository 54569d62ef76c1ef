"""Data generators under the path of PaddlePaddle 1.x."""

from openfleet import compat
from openfleet.dataset import DataGenerator, MultiSlotDataGenerator, MultiSlotStringDataGenerator

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]
__getattr__ = compat.absent(__name__, __all__)
