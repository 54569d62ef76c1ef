"""What a number is over all workers: every worker calls, and every worker gets the same answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..static.program import Variable
from ..static.scope import Scope, global_scope
from . import _job


def _array(value: Any, scope: Scope | None) -> np.ndarray[Any, Any]:
    """A number, an array, or the value of a variable (or of a name) in a scope."""
    if isinstance(value, (Variable, str)):
        name = value if isinstance(value, str) else value.name
        return np.array((global_scope() if scope is None else scope).var(name).get_tensor())
    return np.asarray(value)


def _reduced(mode: str, value: Any, scope: Scope | None) -> np.ndarray[Any, Any]:
    array = _array(value, scope)
    return np.asarray(_job.current().all_reduce(mode, array.reshape(-1).astype(float).tolist())).reshape(array.shape)


def sum(input: Any, scope: Scope | None = None, util: Any = None) -> np.ndarray[Any, Any]:
    """Position by position, the sum."""
    return _reduced("sum", input, scope)


def max(input: Any, scope: Scope | None = None, util: Any = None) -> np.ndarray[Any, Any]:
    """Position by position, the largest."""
    return _reduced("max", input, scope)


def min(input: Any, scope: Scope | None = None, util: Any = None) -> np.ndarray[Any, Any]:
    """Position by position, the smallest."""
    return _reduced("min", input, scope)


def auc(stat_pos: Any, stat_neg: Any, scope: Scope | None = None, util: Any = None) -> float:
    """The AUC of all workers' rows, from the counters of the `auc` layer."""
    positive, negative = (_array(stat, scope).reshape(-1).astype(np.int64).tolist() for stat in (stat_pos, stat_neg))
    return _job.current().auc(positive, negative)


def _ratio(metric: str, part: Any, total: Any, scope: Scope | None) -> float:
    part_sum, rows = (float(_array(value, scope).sum()) for value in (part, total))
    return _job.current().ratio_metric(metric, part_sum, round(rows))


def acc(correct: Any, total: Any, scope: Scope | None = None, util: Any = None) -> float:
    """Accuracy: the share of rows that were predicted correctly."""
    return _ratio("acc", correct, total, scope)


def mae(abserr: Any, total_ins_num: Any, scope: Scope | None = None, util: Any = None) -> float:
    """Mean absolute error, from the sum of absolute errors."""
    return _ratio("mae", abserr, total_ins_num, scope)


def mse(sqrerr: Any, total_ins_num: Any, scope: Scope | None = None, util: Any = None) -> float:
    """Mean squared error, from the sum of squared errors."""
    return _ratio("mse", sqrerr, total_ins_num, scope)


def rmse(sqrerr: Any, total_ins_num: Any, scope: Scope | None = None, util: Any = None) -> float:
    """Root of the mean squared error, from the sum of squared errors."""
    return _ratio("rmse", sqrerr, total_ins_num, scope)
