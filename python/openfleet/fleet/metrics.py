"""Metrics over all workers: every worker calls the function, and every worker gets the same result.

Values are numbers, arrays, or variables (or names) whose value is read from a scope, the global scope by default.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._deprecated import IGNORED, accepts_deprecated
from ..static.program import Variable
from ..static.scope import Scope, global_scope
from . import _job


def _array(value: Any, scope: Scope | None) -> np.ndarray[Any, Any]:
    """Returns a number or an array as an array, or the value of a variable (or of a name) in a scope."""
    if isinstance(value, (Variable, str)):
        name = value if isinstance(value, str) else value.name
        return np.array((global_scope() if scope is None else scope).var(name).get_tensor())
    return np.asarray(value)


def _reduced(mode: str, value: Any, scope: Scope | None) -> np.ndarray[Any, Any]:
    array = _array(value, scope)
    return _job.current().all_reduce(mode, array.reshape(-1).astype(np.float64)).reshape(array.shape)


@accepts_deprecated(util=IGNORED)
def sum(input: Any, scope: Scope | None = None) -> np.ndarray[Any, Any]:
    """Returns the sum over workers, element by element.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.metrics.sum(3.0).item()
    3.0
    """
    return _reduced("sum", input, scope)


@accepts_deprecated(util=IGNORED)
def max(input: Any, scope: Scope | None = None) -> np.ndarray[Any, Any]:
    """Returns the largest value of all workers, element by element.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.metrics.max([1.0, 2.0]).tolist()
    [1.0, 2.0]
    """
    return _reduced("max", input, scope)


@accepts_deprecated(util=IGNORED)
def min(input: Any, scope: Scope | None = None) -> np.ndarray[Any, Any]:
    """Returns the smallest value of all workers, element by element.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.metrics.min([1.0, 2.0]).tolist()
    [1.0, 2.0]
    """
    return _reduced("min", input, scope)


@accepts_deprecated(util=IGNORED)
def auc(stat_pos: Any, stat_neg: Any, scope: Scope | None = None) -> float:
    """Returns the AUC of all workers' rows, from the counters of positives and negatives of the `auc` layer.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.metrics.auc([0, 0, 3], [2, 0, 0])
    1.0
    """
    positive, negative = (_array(stat, scope).reshape(-1).astype(np.int64).tolist() for stat in (stat_pos, stat_neg))
    return _job.current().auc(positive, negative)


def _ratio(metric: str, part: Any, total: Any, scope: Scope | None) -> float:
    part_sum, rows = (float(_array(value, scope).sum()) for value in (part, total))
    return _job.current().ratio_metric(metric, part_sum, round(rows))


@accepts_deprecated(util=IGNORED)
def acc(correct: Any, total: Any, scope: Scope | None = None) -> float:
    """Returns the accuracy: the share of rows that were predicted correctly.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.metrics.acc(3, 4)
    0.75
    """
    return _ratio("acc", correct, total, scope)


@accepts_deprecated(util=IGNORED)
def mae(abserr: Any, total_ins_num: Any, scope: Scope | None = None) -> float:
    """Returns the mean absolute error, from the sum of absolute errors and the number of rows.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.metrics.mae(1.0, 4)
    0.25
    """
    return _ratio("mae", abserr, total_ins_num, scope)


@accepts_deprecated(util=IGNORED)
def mse(sqrerr: Any, total_ins_num: Any, scope: Scope | None = None) -> float:
    """Returns the mean squared error, from the sum of squared errors and the number of rows.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.metrics.mse(1.0, 4)
    0.25
    """
    return _ratio("mse", sqrerr, total_ins_num, scope)


@accepts_deprecated(util=IGNORED)
def rmse(sqrerr: Any, total_ins_num: Any, scope: Scope | None = None) -> float:
    """Returns the root of the mean squared error, from the sum of squared errors and the number of rows.

    >>> from openfleet import fleet
    >>> fleet.init()
    >>> _ = fleet.distributed_optimizer(static.optimizer.SGD(0.1))
    >>> fleet.init_worker()
    >>> fleet.metrics.rmse(1.0, 4)
    0.5
    """
    return _ratio("rmse", sqrerr, total_ins_num, scope)
