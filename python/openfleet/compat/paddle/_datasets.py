"""Datasets with PaddlePaddle's arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from openfleet import _native
from openfleet import dataset as _dataset
from openfleet.compat._notices import say_once as _say_once
from openfleet.dataset.dataset import check_local as _check_local
from openfleet.static import Variable

# Settings of PaddlePaddle that have no effect here: rows are sent between workers in blocks of a fixed size.
_WITHOUT_EFFECT = ("data_feed_type", "fleet_send_batch_size", "fleet_send_sleep_seconds", "queue_num")


def _read_locally(download_cmd: str = "cat", fs_name: str = "", fs_ugi: str = "", input_type: int = 0) -> None:
    """Says what has no effect, and refuses what would read other rows."""
    _check_local(download_cmd, "cat")
    _check_local(input_type, 0)
    if fs_name or fs_ugi:
        _say_once("`fs_name` and `fs_ugi` of datasets have no effect: files are read from the local disk")


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
        _read_locally(download_cmd, fs_name, fs_ugi, input_type)
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

    def update_settings(self, **settings: Any) -> None:
        """Changes settings of `init`, and drops the rows in memory."""
        local = ("download_cmd", "fs_name", "fs_ugi", "input_type")
        _read_locally(**{name: settings.pop(name) for name in local if name in settings})
        super().update_settings(**settings)

    def _set_use_ps_gpu(self, use_ps_gpu: bool) -> None:
        if use_ps_gpu:
            _say_once("`_set_use_ps_gpu` has no effect: tables are in main memory")


class QueueDataset(_PaddleDataset, _dataset.QueueDataset):
    """Streams its files once per pass."""

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Raises NotImplementedError: streamed rows cannot be shuffled."""
        super().global_shuffle(fleet)


class InMemoryDataset(_PaddleDataset, _dataset.InMemoryDataset):
    """Loads its files into memory. The numbers of threads that read and shuffle have no effect."""

    _parse_ins_id = _parse_content = False

    def update_settings(
        self,
        *,
        parse_ins_id: bool | None = None,
        parse_content: bool | None = None,
        merge_size: int = -1,
        fea_eval: bool = False,
        candidate_size: int = 10000,
        **settings: Any,
    ) -> None:
        """Changes settings of `init`, and drops the rows in memory. With `parse_ins_id` lines begin with an identifier,
        with `parse_content` with a text (after the identifier). Both are skipped.
        """
        if merge_size > 0 or fea_eval:
            raise NotImplementedError("`merge_size` and `fea_eval` of InMemoryDataset: rows stay as they are read")
        if parse_ins_id is not None:
            self.set_parse_ins_id(parse_ins_id)
        if parse_content is not None:
            self.set_parse_content(parse_content)
        super().update_settings(**{name: settings[name] for name in settings if name not in _WITHOUT_EFFECT})

    def set_parse_ins_id(self, parse_ins_id: bool) -> None:
        """Sets whether lines begin with an identifier, which is skipped."""
        self._parse_ins_id = parse_ins_id
        self._set("description", None)

    def set_parse_content(self, parse_content: bool) -> None:
        """Sets whether lines begin with a text (after the identifier), which is skipped."""
        self._parse_content = parse_content
        self._set("description", None)

    def _prepared(self) -> _native.Dataset:
        skipped = ["ins_id"] * self._parse_ins_id + ["content"] * self._parse_content
        if self._native is None and skipped:
            slots = [*(f"{name} of the line" for name in skipped), *(variable.name for variable in self._use_var)]
            self._settings["description"] = json.dumps({"slots": slots})
        return super()._prepared()

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Starts to read the files in the background."""
        super().preload_into_memory()

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12, seed: int | None = None) -> None:
        """Distributes the rows of all workers among all workers at random."""
        super().global_shuffle(fleet, seed=seed)
