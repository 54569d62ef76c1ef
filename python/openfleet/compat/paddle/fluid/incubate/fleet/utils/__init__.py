"""`fluid.incubate.fleet.utils`."""

from openfleet import compat

from . import fleet_util, fs, hdfs

__all__ = ["fleet_util", "fs", "hdfs"]
__getattr__ = compat.absent(__name__, __all__)
