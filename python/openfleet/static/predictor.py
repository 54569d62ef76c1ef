"""Predicts with a saved model, without a scope or an executor, from any number of threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .. import _native
from .feed import columns
from .program import Program


class Predictor:
    """What `save_inference_model` wrote, ready to predict.

    The embedding rows stay in the model's files, which are mapped into memory; opening compares every byte with its
    checksum. Threads may share one: the GIL is released while it computes. Ids that were never seen have the row that
    training would have begun with.
    """

    def __init__(self, path_prefix: str | os.PathLike[str]) -> None:
        self._native = _native.Predictor(os.fspath(path_prefix))
        self._program = Program._of(self._native.program())

    @property
    def feeds(self) -> list[str]:
        """The names of what it is fed."""
        return self._native.feeds()

    @property
    def targets(self) -> list[str]:
        """The names of what it gives, in order."""
        return self._native.targets()

    def predict(self, feed: Mapping[str, Any]) -> list[Any]:
        """The targets for one batch, which is given as to `Executor.run`."""
        return self._native.predict(*columns(self._program, feed))
