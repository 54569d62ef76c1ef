"""Datasets: which rows to train on, from which files, and how many at a time.

A missing file raises FileNotFoundError when a pass begins. A malformed line ends the pass with a DataError that names
the file, the line and the slot.

>>> import tempfile, os
>>> from openfleet import static
>>> path = os.path.join(tempfile.mkdtemp(), "rows.csv")
>>> with open(path, "w") as out:
...     _ = out.write("clicked,age,city\\n1,30,Rome\\n0,50,\\n")
>>> with static.program_guard(static.Program(), static.Program()):
...     label, dense = static.data("label", [None, 1], "int64"), static.data("dense", [None, 1])
...     city = static.data("city", [None, 1], "int64", lod_level=1)
>>> dataset = InMemoryDataset()
>>> columns = {"label": {"column": "clicked"}, "dense": [{"column": "age"}], "categorical": [{"column": "city"}]}
>>> dataset.init(batch_size=2, use_var=[label, dense, city], format="csv", columns=columns)
>>> dataset.set_filelist([path])
>>> dataset.load_into_memory()
>>> dataset.get_memory_data_size()
2
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _native
from .._deprecated import IGNORED, Deprecated, accepts_deprecated
from .._log import logger
from ..static.program import Variable


def check_local(value: Any, default: Any) -> None:
    """Raises NotImplementedError for PaddlePaddle's options of remote file systems."""
    if value != default:
        raise NotImplementedError(
            "`fs_name`, `fs_ugi`, `download_cmd`, `input_type`: files are read from the local disk"
        )


def _local_only(default: Any) -> Deprecated:
    def check(value: Any) -> dict[str, Any]:
        check_local(value, default)
        return {}

    return Deprecated("leave it out, files are read from the local disk", check)


class DatasetBase:
    """Base class of the datasets that read files."""

    _in_memory = False
    # Whether `set_filelist` was called after the rows in memory were read.
    _files_unread = False

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {
            "batch_size": 1,
            "thread_num": 1,
            "drop_last": False,
            "pipe_command": None,
            "skip_bad_lines": False,
            "format": "multislot",
            "description": None,
            "description_file": None,
        }
        self._use_var: list[Variable] = []
        self._files: list[str] = []
        self._native: _native.Dataset | None = None

    @accepts_deprecated(
        "self batch_size thread_num use_var pipe_command input_type fs_name fs_ugi download_cmd drop_last "
        "skip_bad_lines format columns",
        input_type=_local_only(0),
        fs_name=_local_only(""),
        fs_ugi=_local_only(""),
        download_cmd=_local_only("cat"),
    )
    def init(
        self,
        batch_size: int = 1,
        thread_num: int = 1,
        use_var: Sequence[Variable] = (),
        pipe_command: str | None = None,
        *,
        drop_last: bool = False,
        skip_bad_lines: bool = False,
        format: str = "multislot",
        columns: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    ) -> None:
        """Sets how files become batches.

        Args:
            batch_size: Rows per batch.
            thread_num: Training threads, and files that are read at the same time.
            use_var: The data variables, in the order of a line's fields.
            pipe_command: A command that reads each file on its standard input and writes the lines to parse.
            drop_last: Whether to skip a last batch that is not full.
            skip_bad_lines: Whether to skip malformed lines and count them instead of stopping.
            format: `multislot`, `criteo`, `csv`, `libsvm` or `parquet` (also Arrow IPC files); fields of all but
                `multislot` are found by name.
            columns: Describes the files: a mapping, or the TOML file that `openfleet train --columns` takes.
        """
        self.set_use_var(use_var)
        described = isinstance(columns, Mapping)
        self._settings = {
            "batch_size": int(batch_size),
            "thread_num": int(thread_num),
            "drop_last": drop_last,
            "pipe_command": pipe_command,
            "skip_bad_lines": skip_bad_lines,
            "format": format,
            "description": json.dumps(columns) if described else None,
            "description_file": None if described or columns is None else os.fspath(columns),  # type: ignore[arg-type]
        }

    def set_filelist(self, filelist: Sequence[str | os.PathLike[str]]) -> None:
        """Sets the files, in the order in which they are read: plain text, gzip or zstd."""
        if isinstance(filelist, (str, os.PathLike)):
            raise TypeError("`set_filelist` expects a list of files, got one path")
        self._files = [os.fspath(file) for file in filelist]
        if self._native is not None and self._in_memory:
            self._native.set_files(self._files)
            self._files_unread = self._native.memory_rows() > 0
        else:
            self._native = None

    def get_filelist(self) -> list[str]:
        """Returns the files."""
        return list(self._files)

    def _for_pass(self) -> _native.Dataset:
        native = self._prepared()
        if self._files_unread:
            self._files_unread = False
            logger.warning(
                "`set_filelist` was called after `load_into_memory`: this pass uses the %d rows loaded before",
                native.memory_rows(),
            )
        return native

    def _prepared(self) -> _native.Dataset:
        """Returns the native dataset, and creates it on first use."""
        if self._native is None:
            if not self._use_var:
                raise ValueError("the dataset has no fields\n\nhint: call `init(use_var=[...])` first")
            program = self._use_var[0].program._native
            names = [variable.name for variable in self._use_var]
            self._native = _native.Dataset(program, names, self._files, in_memory=self._in_memory, **self._settings)
        return self._native

    def update_settings(self, **settings: Any) -> None:
        """Changes settings of `init`: `batch_size`, `thread_num`, `use_var` or `pipe_command`. Drops the rows in
        memory.

        >>> dataset = QueueDataset()
        >>> dataset.update_settings(batch_size=32, thread_num=2)
        """
        setters: dict[str, Callable[[Any], None]] = {
            "batch_size": self.set_batch_size,
            "thread_num": self.set_thread,
            "use_var": self.set_use_var,
            "pipe_command": self.set_pipe_command,
        }
        for name in settings:
            if name not in setters:
                hint = _native.nearest(name, list(setters))
                raise ValueError(f"`update_settings` does not change `{name}`\n\nhint: {hint}")
        for name, value in settings.items():
            setters[name](value)

    # Setters of PaddlePaddle 1.x.

    def _set(self, name: str, value: Any) -> None:
        self._settings[name] = value
        self._native = None

    def set_batch_size(self, batch_size: int) -> None:
        """Sets the number of rows per batch."""
        self._set("batch_size", int(batch_size))

    def set_thread(self, thread_num: int) -> None:
        """Sets the number of training threads."""
        self._set("thread_num", int(thread_num))

    def set_use_var(self, var_list: Sequence[Variable]) -> None:
        """Sets the data variables, in the order of a line's fields."""
        for variable in var_list:
            if not isinstance(variable, Variable):
                raise TypeError(f"`use_var` expects data variables, got {type(variable).__name__}")
        self._use_var = list(var_list)
        self._native = None

    def set_pipe_command(self, pipe_command: str) -> None:
        """Sets the command that reads each file and writes the lines to parse."""
        self._set("pipe_command", pipe_command)


class QueueDataset(DatasetBase):
    """Streams its files once per pass, in bounded memory.

    >>> dataset = QueueDataset()
    >>> dataset.init(batch_size=32, thread_num=2, use_var=[static.data("x", [None, 2])])
    """

    def local_shuffle(self) -> None:
        """Raises NotImplementedError: streamed rows cannot be shuffled."""
        raise NotImplementedError("a QueueDataset streams and cannot be shuffled: use InMemoryDataset")

    @accepts_deprecated(thread_num=IGNORED)
    def global_shuffle(self, fleet: Any = None) -> None:
        """Raises NotImplementedError: streamed rows cannot be shuffled."""
        self.local_shuffle()


class InMemoryDataset(DatasetBase):
    """Loads its files into memory, where rows can be shuffled and used for any number of passes.

    >>> import os, tempfile
    >>> from openfleet.dataset import InMemoryDataset
    >>> path = os.path.join(tempfile.mkdtemp(), "clicks.txt")
    >>> with open(path, "w") as out:
    ...     _ = out.write("1 1 2 7 8\\n1 0 1 9\\n")
    >>> label = static.data("label", [None, 1], "int64")
    >>> user = static.data("user", [None, 1], "int64", lod_level=1)
    >>> dataset = InMemoryDataset()
    >>> dataset.init(batch_size=2, use_var=[label, user])
    >>> dataset.set_filelist([path])
    >>> dataset.load_into_memory()
    >>> dataset.get_memory_data_size()
    2
    """

    _in_memory = True

    def __init__(self) -> None:
        super().__init__()
        self._shuffles = 0

    def load_into_memory(self, is_shuffle: bool = False) -> None:
        """Reads all files into memory; with `is_shuffle` it shuffles the rows."""
        self._files_unread = False
        self._prepared().load_into_memory()
        if is_shuffle:
            self.local_shuffle()

    @accepts_deprecated(thread_num=IGNORED)
    def preload_into_memory(self) -> None:
        """Starts to read the files in the background."""
        self._files_unread = False
        self._prepared().preload_into_memory()

    def wait_preload_done(self) -> None:
        """Waits until the files are read; their rows replace those in memory."""
        self._prepared().wait_preload_done()

    def local_shuffle(self, seed: int | None = None) -> None:
        """Shuffles the rows of this worker, differently at each call; a seed fixes the order."""
        self._prepared().local_shuffle(self._next_seed(seed))

    @accepts_deprecated("self fleet thread_num seed", thread_num=IGNORED)
    def global_shuffle(self, fleet: Any = None, *, seed: int | None = None) -> None:
        """Distributes the rows of all workers among all workers at random. Each row goes to one worker.

        Every worker calls it. Their lists of files may differ, and a worker without files need not load anything. Rows
        are sent over the servers, a few megabytes at a time. In a process alone it is a `local_shuffle`.

        Raises:
            openfleet.OrderError: `fleet` is given and `fleet.init_worker` was not called.
        """
        from ..fleet import _job

        job, seed = _job.at_work(), self._next_seed(seed)
        if job is not None:
            self._prepared().global_shuffle(job, seed)
        elif fleet is not None and _job.current().worker_num() > 1:
            hint = "call `fleet.init_worker()` first"
            raise _native.OrderError(f"`global_shuffle` was called before `fleet.init_worker`\n\nhint: {hint}")
        else:
            self._prepared().local_shuffle(seed)

    def _next_seed(self, seed: int | None) -> int:
        self._shuffles += 1
        return self._shuffles - 1 if seed is None else seed

    def release_memory(self) -> None:
        """Drops the rows in memory."""
        self._files_unread = False
        self._prepared().release_memory()

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """Returns the number of rows in memory: of this worker, or of all workers where `fleet` is given."""
        rows = self._prepared().memory_rows()
        if fleet is None:
            return rows
        from ..fleet import _job

        return int(_job.current().all_reduce("sum", np.array([rows], np.int64))[0])

    def get_shuffle_data_size(self, fleet: Any = None) -> int:
        """Returns the number of rows in memory after a shuffle, like `get_memory_data_size`."""
        return self.get_memory_data_size(fleet)
