"""`fleet.metrics`: metrics over all workers, with PaddlePaddle's argument `util`, which adds up what workers count."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from openfleet import compat
from openfleet.fleet import metrics as _metrics
from openfleet.fleet import util as _fleet_util

from . import util as _paddle_util


def _metric(name: str) -> Any:
    function = getattr(_metrics, name)
    signature = inspect.signature(function)

    def metric(*args: Any, **kwargs: Any) -> Any:
        given = _signature.bind(*args, **kwargs).arguments
        util = given.pop("util", None)
        if util is None or util in (_paddle_util, _fleet_util):
            return function(**given)
        scope = given.pop("scope", None)
        values = [_metrics._array(value, scope) for value in given.values()]
        mode = name if name in ("max", "min") else "sum"
        return _RESULTS[name](*(np.asarray(util.all_reduce(value, mode)).reshape(value.shape) for value in values))

    added = inspect.Parameter("util", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    _signature = signature.replace(parameters=[*signature.parameters.values(), added])
    metric.__name__, metric.__doc__, metric.__signature__ = name, function.__doc__, _signature  # type: ignore[attr-defined]
    return metric


def _auc(positive: Any, negative: Any) -> float:
    positive, negative = positive.reshape(-1)[::-1], negative.reshape(-1)[::-1]
    pairs = float(positive.sum()) * float(negative.sum())
    # A pair within one bin counts half. With one class only, PaddlePaddle returns 0.5.
    return float((negative * (np.cumsum(positive) - positive / 2.0)).sum() / pairs) if pairs else 0.5


def _share(part: Any, total: Any) -> float:
    return float(np.sum(part)) / float(np.sum(total))


_RESULTS: dict[str, Any] = {
    "acc": _share,
    "auc": _auc,
    "mae": _share,
    "max": np.asarray,
    "min": np.asarray,
    "mse": _share,
    "rmse": lambda part, total: _share(part, total) ** 0.5,
    "sum": np.asarray,
}

acc, auc, mae, max = map(_metric, ("acc", "auc", "mae", "max"))
min, mse, rmse, sum = map(_metric, ("min", "mse", "rmse", "sum"))
__all__ = ["acc", "auc", "mae", "max", "min", "mse", "rmse", "sum"]
__getattr__ = compat.absent(__name__, __all__)
