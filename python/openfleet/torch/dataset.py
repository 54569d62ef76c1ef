"""OpenFleet's text formats as a dataset of PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import static
from .._log import logger
from ..dataset import InMemoryDataset, QueueDataset
from ..fleet import _job

Field = tuple[torch.dtype, int]


class Dataset(torch.utils.data.IterableDataset):
    """Batches of text files as tensors, read and parsed without the GIL.

    Each worker of a job reads its part of the files (`fleet.split_files`), and each worker of a `DataLoader` a part of
    that. The batches are complete, so a `DataLoader` takes `batch_size=None`.

    Args:
        files: The files of all workers, plain text, gzip or zstd; the same list on every worker.
        fields: What a batch has, by name. `(torch.float32, 13)`: 13 floats per row, [B, 13]. `(torch.int64, 2)`: 2
            integers per row, [B, 2]. `torch.int64`: any number of ids per row, as a tuple of the ids of all rows and
            the [B] offsets where each row begins, which are the arguments of `EmbeddingBag`. For MultiSlot text in the
            order of a line's fields; other formats find them by name.
        batch_size: Rows per batch.
        format: `multislot`, `criteo`, `csv`, `libsvm` or `parquet`.
        columns: Describes the files, as in `openfleet.dataset`.
        shuffle_seed: Keeps the rows of this worker in memory and shuffles them before each pass, in another order each
            time. In the workers of a `DataLoader` the order also depends on `torch.manual_seed`. By default files are
            streamed in their order.
        drop_last: Whether to skip a last batch that is not full.
        skip_bad_lines: Whether to skip malformed lines and count them instead of stopping.
        pipe_command: A command that reads each file on its standard input and writes the lines to parse.

    Raises:
        FileNotFoundError: A file is missing, when a pass begins.
        openfleet.DataError: A line is malformed.
    """

    def __init__(
        self,
        files: Sequence[str | os.PathLike[str]],
        fields: Mapping[str, torch.dtype | Field],
        *,
        batch_size: int,
        format: str = "multislot",
        columns: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        shuffle_seed: int | None = None,
        drop_last: bool = False,
        skip_bad_lines: bool = False,
        pipe_command: str | None = None,
    ) -> None:
        super().__init__()
        self._files = [os.fspath(file) for file in files]
        self._fields = {name: _checked(name, field) for name, field in fields.items()}
        self._shuffle_seed = shuffle_seed
        self._settings = {
            "batch_size": batch_size,
            "format": format,
            "columns": columns,
            "drop_last": drop_last,
            "skip_bad_lines": skip_bad_lines,
            "pipe_command": pipe_command,
        }
        self._passes = 0
        # The rows in memory, of the files that they are from.
        self._loaded: tuple[list[str], InMemoryDataset] | None = None
        # In another process, such as a worker of a `DataLoader`: the part of the job's worker.
        self._part: list[str] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        files = self._files_of_worker()
        seed, self._passes = self._passes, self._passes + 1
        loader = torch.utils.data.get_worker_info()
        if loader is not None:
            files = files[loader.id :: loader.num_workers]
            # Such a process may exist for one pass only; `DataLoader` gives every pass another seed.
            seed = loader.seed - loader.id
        if not files:
            return
        batches = self._dataset(files, seed)._for_pass().batches()
        while (arrays := batches.next()) is not None:
            yield {name: _tensors(array) for name, array in zip(self._fields, arrays)}
        if batches.skipped_lines:
            logger.warning("%d malformed lines were skipped in %d files", batches.skipped_lines, len(files))

    def _files_of_worker(self) -> list[str]:
        """The files of this worker of the job; all of them without a job."""
        if self._part is not None:
            return self._part
        job = _job.joined()
        return self._files if job is None or not job.is_worker() else job.split_files(self._files)

    def _dataset(self, files: list[str], seed: int) -> QueueDataset | InMemoryDataset:
        if self._shuffle_seed is None:
            return self._new(QueueDataset(), files)
        if self._loaded is None or self._loaded[0] != files:
            dataset = self._new(InMemoryDataset(), files)
            dataset.load_into_memory()
            self._loaded = files, dataset
        dataset = self._loaded[1]
        dataset.local_shuffle((self._shuffle_seed + seed) % 2**63)
        return dataset

    def _new(self, dataset: Any, files: list[str]) -> Any:
        with static.program_guard(static.Program(), static.Program()):
            variables = [
                static.data(name, [None, length or 1], "float32" if dtype.is_floating_point else "int64", **level)
                for name, (dtype, length) in self._fields.items()
                for level in [{} if length else {"lod_level": 1}]
            ]
        dataset.init(use_var=variables, **self._settings)
        dataset.set_filelist(files)
        return dataset

    def __getstate__(self) -> dict[str, Any]:
        # The process that unpickles it has no job.
        return {**self.__dict__, "_loaded": None, "_part": self._files_of_worker()}


def _checked(name: str, field: Any) -> tuple[torch.dtype, int | None]:
    """The type of a field, and how many there are in a row; None if any number."""
    if field is torch.int64:
        return torch.int64, None
    if isinstance(field, tuple) and len(field) == 2 and field[0] in (torch.float32, torch.int64):
        return field[0], int(field[1])
    raise TypeError(
        f"the field `{name}` expects `(torch.float32, n)`, `(torch.int64, n)` or `torch.int64`, got {field!r}"
    )


def _tensors(array: Any) -> Any:
    """The memory of the batch itself: nothing is copied."""
    if isinstance(array, tuple):
        ids, offsets = array
        return torch.from_numpy(ids), torch.from_numpy(offsets)[:-1]
    return torch.from_numpy(array)
