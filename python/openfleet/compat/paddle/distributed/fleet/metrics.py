"""`fleet.metrics`: metrics over all workers with PaddlePaddle's argument `util`, which has no effect."""

from typing import Any

from openfleet import compat
from openfleet.compat._arguments import with_arguments as _with_arguments
from openfleet.fleet import metrics as _metrics


def _metric(name: str) -> Any:
    return _with_arguments(getattr(_metrics, name), util=None)


acc, auc, mae, max = map(_metric, ("acc", "auc", "mae", "max"))
min, mse, rmse, sum = map(_metric, ("min", "mse", "rmse", "sum"))
__all__ = ["acc", "auc", "mae", "max", "min", "mse", "rmse", "sum"]
__getattr__ = compat.absent(__name__, __all__)
