"""Reads text for `models.word2vec`: centre words with their contexts and negative samples.

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
    """A text in memory, with one sentence per line and words separated by blanks: plain, gzip or zstd.

    Each batch has the fields `context` and `target`, which `models.word2vec` declares. Frequent words are dropped at
    random and negatives are drawn as in Mikolov et al. 2013; `seed` fixes both.

    In a job every worker passes the same files. All workers number the words of the whole text in the same way, and
    each trains on its part, so that one epoch of all workers covers the text once.

    Args:
        filelist: The files.
        batch_size: Centre words per batch.
        thread_num: Training threads.
        window: The largest distance between a centre word and a context word.
        negatives: Negative samples per centre word.
        min_count: Words with fewer occurrences are ignored.
        subsample: The threshold of dropping frequent words; smaller values drop more.
        seed: The seed of all random choices.
        part: `(i, n)` is the part of worker i of n, `(0, 1)` the whole text. By default it is this worker's part after
            `fleet.init`, and the whole text otherwise.

    Raises:
        FileNotFoundError: A file does not exist.
        ValueError: `part` is out of range.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "text")
    >>> with open(path, "w") as out:
    ...     _ = out.write("the cat and the dog\\n")
    >>> WordsDataset([path], min_count=2).vocabulary()
    ['the']
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
        """Returns the words, the most frequent first: word i has id i."""
        return self._prepared().vocabulary()

    def _set(self, name: str, value: object) -> None:
        raise NotImplementedError(f"`{name}` of a WordsDataset can only be set when it is created")

    def init(self, *args: object, **kwargs: object) -> None:
        """Raises NotImplementedError: the constructor takes all settings."""
        self._set("init", None)

    def set_filelist(self, filelist: Sequence[str | os.PathLike[str]]) -> None:
        """Raises NotImplementedError: the constructor takes all settings."""
        self._set("filelist", None)

    def set_use_var(self, var_list: object) -> None:
        """Raises NotImplementedError: the fields are `context` and `target`."""
        self._set("use_var", None)


def _own_part() -> tuple[int, int]:
    """Returns this worker's part of a text that all workers of its job share."""
    from ..fleet import _job

    job = _job.joined()
    return (job.worker_index(), job.worker_num()) if job is not None and job.is_worker() else (0, 1)


def _checked(part: tuple[int, int]) -> tuple[int, int]:
    index, count = part
    if not 0 <= index < count:
        raise ValueError(f"`part` expects (i, n) with 0 <= i < n, got {part}")
    return index, count
