"""`fluid.dataset`: creates datasets by the names of their classes."""

from openfleet import _native, compat
from openfleet.compat.paddle._datasets import InMemoryDataset, QueueDataset
from openfleet.dataset import DatasetBase


class DatasetFactory:
    """Creates datasets by name."""

    _kinds = {"QueueDataset": QueueDataset, "InMemoryDataset": InMemoryDataset}

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> DatasetBase:
        """Creates a `QueueDataset` or an `InMemoryDataset`."""
        if datafeed_class not in self._kinds:
            nearest = _native.nearest(datafeed_class, list(self._kinds))
            raise NotImplementedError(f"no dataset is named `{datafeed_class}`\n\nhint: {nearest}")
        return self._kinds[datafeed_class]()


__all__ = ["DatasetFactory", "InMemoryDataset", "QueueDataset"]
__getattr__ = compat.absent(__name__, __all__)
