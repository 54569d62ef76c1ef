"""Datasets: which rows, from which files, how many at a time.

A missing file is found when a pass begins; a bad line ends it with the file, the line and the slot.

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
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _native
from .._log import logger
from ..static.program import Variable


class DatasetBase:
    """What both kinds of dataset have."""

    _in_memory = False
    # Other files were set than those whose rows are in memory, and nobody has begun to read them.
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
        """Batches of `batch_size` rows for `thread_num` threads; `use_var` in the order in which a line has them.

        `pipe_command` is given each file on its standard input and writes the lines to read. `format` is `multislot`,
        `criteo`, `csv` or `libsvm`; fields of the last three are found by name. `columns` describes the files, as a
        mapping or as the TOML file that `openfleet train --columns` takes.
        """
        if fs_name or fs_ugi or download_cmd != "cat" or input_type != 0:
            raise NotImplementedError(
                "`fs_name`, `fs_ugi`, `download_cmd`, `input_type`: files are read from the local disk"
            )
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
        """The files, in the order in which they are read: plain, gzip or zstd."""
        if isinstance(filelist, (str, os.PathLike)):
            raise TypeError("`set_filelist` expects a list of files, got one path")
        self._files = [os.fspath(file) for file in filelist]
        if self._native is not None and self._in_memory:
            self._native.set_files(self._files)
            self._files_unread = self._native.memory_rows() > 0
        else:
            self._native = None

    def get_filelist(self) -> list[str]:
        """The files."""
        return list(self._files)

    def _for_a_pass(self) -> _native.Dataset:
        native = self._prepared()
        if self._files_unread:
            self._files_unread = False
            logger.warning(
                "`set_filelist` was called after `load_into_memory`: this pass reads the %d rows of before",
                native.memory_rows(),
            )
        return native

    def _prepared(self) -> _native.Dataset:
        """The dataset as the engine has it."""
        if self._native is None:
            if not self._use_var:
                raise ValueError("the dataset has no fields\n\nhint: call `init(use_var=[...])` first")
            program = self._use_var[0].program._native
            names = [variable.name for variable in self._use_var]
            self._native = _native.Dataset(program, names, self._files, in_memory=self._in_memory, **self._settings)
        return self._native

    def update_settings(self, **settings: Any) -> None:
        """Changes some of what `init` was given. Rows in memory are forgotten.

        >>> dataset = QueueDataset()
        >>> dataset.update_settings(batch_size=32, thread_num=2)
        """
        setters = {
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

    # The setters of the original's first version.

    def _set(self, name: str, value: Any) -> None:
        self._settings[name] = value
        self._native = None

    def set_batch_size(self, batch_size: int) -> None:
        """Rows in a batch."""
        self._set("batch_size", int(batch_size))

    def set_thread(self, thread_num: int) -> None:
        """Training threads."""
        self._set("thread_num", int(thread_num))

    def set_use_var(self, var_list: Sequence[Variable]) -> None:
        """The fields, in the order in which a line has them."""
        for variable in var_list:
            if not isinstance(variable, Variable):
                raise TypeError(f"`use_var` expects data variables, got {type(variable).__name__}")
        self._use_var = list(var_list)
        self._native = None

    def set_pipe_command(self, pipe_command: str) -> None:
        """The command between a file and the reader."""
        self._set("pipe_command", pipe_command)


class QueueDataset(DatasetBase):
    """Files streamed once a pass, in bounded memory."""

    def local_shuffle(self) -> None:
        """Not for a dataset that streams."""
        raise NotImplementedError("a QueueDataset streams and cannot be shuffled: use InMemoryDataset")

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Not for a dataset that streams."""
        self.local_shuffle()


class InMemoryDataset(DatasetBase):
    """Files loaded into memory, shuffled, and gone over as often as asked."""

    _in_memory = True

    def __init__(self) -> None:
        super().__init__()
        self._shuffles = 0

    def load_into_memory(self, is_shuffle: bool = False) -> None:
        """Reads all files."""
        self._files_unread = False
        self._prepared().load_into_memory()
        if is_shuffle:
            self.local_shuffle()

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begins to read the files in the background."""
        self._files_unread = False
        self._prepared().preload_into_memory()

    def wait_preload_done(self) -> None:
        """Waits for the background reading; its rows replace those in memory."""
        self._prepared().wait_preload_done()

    def local_shuffle(self, seed: int | None = None) -> None:
        """Puts the rows in another order, each time a new one; a seed says which."""
        self._prepared().local_shuffle(self._next_seed(seed))

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12, seed: int | None = None) -> None:
        """Deals the rows of all workers to all workers at random, each row to one of them.

        Every worker calls it; the lists of files may differ, and a worker without files may have loaded nothing. Rows
        travel over the servers, a few megabytes at a time. In one process it is a `local_shuffle`.
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
        """Forgets the rows."""
        self._files_unread = False
        self._prepared().release_memory()

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """Rows in memory, of all workers where `fleet` is given."""
        rows = self._prepared().memory_rows()
        if fleet is None:
            return rows
        from ..fleet import _job

        return int(_job.current().all_reduce("sum", [float(rows)])[0])

    def get_shuffle_data_size(self, fleet: Any = None) -> int:
        """Rows in memory after a shuffle: `get_memory_data_size` by its other name."""
        return self.get_memory_data_size(fleet)
