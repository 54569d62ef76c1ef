"""Predicts with a saved inference model, without a scope or an executor, from any number of threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .. import _native
from .feed import columns
from .program import Program


class Predictor:
    """An inference model, as `save_inference_model` saves it, ready to predict.

    The embedding rows stay in the model's files, which are mapped into memory. Opening verifies the checksum of every
    file. Threads can share one predictor: it releases the GIL while it computes. An id that was never seen has the row
    that training would have started with.

    Raises:
        FileNotFoundError: There is no model at `path_prefix`.
        openfleet.CheckpointError: The model is damaged.

    >>> import tempfile
    >>> x = static.data("x", [None, 2])
    >>> y = static.nn.fc(x, size=1, weight_attr=static.initializer.Constant(1.0))
    >>> _ = exe.run(static.default_startup_program())
    >>> path = tempfile.mkdtemp() + "/model"
    >>> static.save_inference_model(path, [x], [y], exe)
    >>> static.Predictor(path).predict({"x": [[1.0, 2.0]]})[0].tolist()
    [[3.0]]
    """

    def __init__(self, path_prefix: str | os.PathLike[str]) -> None:
        self._native = _native.Predictor(os.fspath(path_prefix))
        self._program = Program._of(self._native.program())

    @property
    def feeds(self) -> list[str]:
        """The names of its inputs."""
        return self._native.feeds()

    @property
    def targets(self) -> list[str]:
        """The names of its targets, in the order of the results of `predict`."""
        return self._native.targets()

    def predict(self, feed: Mapping[str, Any]) -> list[Any]:
        """Returns one array per target for one batch, which is fed as to `Executor.run`."""
        return self._native.predict(*columns(self._program, feed))
