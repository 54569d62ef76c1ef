"""Text for `models.word2vec`: centre words with their contexts and negative samples.

>>> import os, tempfile
>>> path = os.path.join(tempfile.mkdtemp(), "text")
>>> with open(path, "w") as out:
...     _ = out.write("the cat and the dog and the bird\\n")
>>> words = WordsDataset([path], min_count=2)
>>> words.vocabulary()
['the', 'and']
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from .. import _native
from .dataset import DatasetBase


class WordsDataset(DatasetBase):
    """A corpus in memory: plain, gzip or zstd text, words between blanks, a sentence a line.

    Each batch has the fields `context` and `target`, which `models.word2vec` declares. Frequent words are dropped and
    negatives drawn as Mikolov et al. 2013 do, all by `seed`.

    In a job every worker gives the same files: all of them number the words of the whole text alike, and each trains on
    its part of it, so that an epoch of all workers goes over the text once. `part=(i, n)` is the part of worker i of n,
    `part=(0, 1)` the whole text; None is this worker's part after `fleet.init`, and the whole text otherwise.
    """

    def __init__(
        self,
        filelist: Sequence[str | os.PathLike[str]],
        *,
        batch_size: int = 256,
        thread_num: int = 1,
        window: int = 5,
        negatives: int = 5,
        min_count: int = 5,
        subsample: float = 1e-4,
        seed: int = 0,
        part: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self._files = [os.fspath(file) for file in filelist]
        self._native = _native.Dataset.words(
            self._files,
            min_count=min_count,
            window=window,
            negatives=negatives,
            subsample=float(subsample),
            batch_size=batch_size,
            thread_num=thread_num,
            seed=seed,
            part=_own_part() if part is None else _checked(part),
        )

    def vocabulary(self) -> list[str]:
        """The words, the most frequent first: word number i has id i."""
        return self._prepared().vocabulary()

    def _set(self, name: str, value: object) -> None:
        raise NotImplementedError(f"`{name}` of a WordsDataset is chosen when it is made")

    def init(self, *args: object, **kwargs: object) -> None:
        """Not for text: everything is chosen when it is made."""
        self._set("init", None)

    def set_filelist(self, filelist: Sequence[str | os.PathLike[str]]) -> None:
        """Not for text: everything is chosen when it is made."""
        self._set("filelist", None)

    def set_use_var(self, var_list: object) -> None:
        """Not for text: its fields are `context` and `target`."""
        self._set("use_var", None)


def _own_part() -> tuple[int, int]:
    """This worker's part of a text that the workers of its job share."""
    from ..fleet import _job

    job = _job.joined()
    return (job.worker_index(), job.worker_num()) if job is not None and job.is_worker() else (0, 1)


def _checked(part: tuple[int, int]) -> tuple[int, int]:
    index, count = part
    if not 0 <= index < count:
        raise ValueError(f"`part` expects (i, n) with 0 <= i < n, got {part}")
    return index, count
