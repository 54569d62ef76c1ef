"""Datasets with PaddlePaddle's arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from openfleet import dataset as _dataset
from openfleet.dataset.dataset import check_local as _check_local
from openfleet.static import Variable


class _PaddleDataset(_dataset.DatasetBase):
    def init(
        self,
        batch_size: int = 1,
        thread_num: int = 1,
        use_var: Sequence[Variable] = (),
        pipe_command: str | None = None,
        input_type: int = 0,
        fs_name: str = "",
        fs_ugi: str = "",
        download_cmd: str = "cat",
        drop_last: bool = False,
        skip_bad_lines: bool = False,
        format: str = "multislot",
        columns: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    ) -> None:
        """Sets how files become batches. Files are read from the local disk."""
        for value, default in ((input_type, 0), (fs_name, ""), (fs_ugi, ""), (download_cmd, "cat")):
            _check_local(value, default)
        super().init(
            batch_size,
            thread_num,
            use_var,
            pipe_command,
            drop_last=drop_last,
            skip_bad_lines=skip_bad_lines,
            format=format,
            columns=columns,
        )


class QueueDataset(_PaddleDataset, _dataset.QueueDataset):
    """Streams its files once per pass."""

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Raises NotImplementedError: streamed rows cannot be shuffled."""
        super().global_shuffle(fleet)


class InMemoryDataset(_PaddleDataset, _dataset.InMemoryDataset):
    """Loads its files into memory. The numbers of threads that read and shuffle have no effect."""

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Starts to read the files in the background."""
        super().preload_into_memory()

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12, seed: int | None = None) -> None:
        """Distributes the rows of all workers among all workers at random."""
        super().global_shuffle(fleet, seed=seed)
