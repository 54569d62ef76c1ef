"""`paddle.io`: datasets in Python, and loaders that turn them into batches of arrays to feed."""

from __future__ import annotations

import bisect
import itertools
import operator
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from openfleet import compat
from openfleet.static.program import Variable as _Variable

from . import _feeding
from . import distributed as _distributed


class Dataset:
    """Samples by index. Override `__getitem__` and `__len__`."""

    def __getitem__(self, idx: int) -> Any:
        raise NotImplementedError(f"`__getitem__` of {type(self).__name__}")

    def __len__(self) -> int:
        raise NotImplementedError(f"`__len__` of {type(self).__name__}")


class IterableDataset(Dataset):
    """Samples in order. Override `__iter__`."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"`__iter__` of {type(self).__name__}")

    def __getitem__(self, idx: int) -> Any:
        raise RuntimeError(f"{type(self).__name__} has samples in order, not by number")

    def __len__(self) -> int:
        raise RuntimeError(f"{type(self).__name__} does not know how many samples it has")


class TensorDataset(Dataset):
    """Rows of several arrays of one length."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = [np.asarray(tensor) for tensor in tensors]
        if len({len(tensor) for tensor in self.tensors}) != 1:
            raise ValueError("`tensors` of TensorDataset expects arrays of one length")

    def __getitem__(self, idx: int) -> Any:
        return tuple(tensor[idx] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class ComposeDataset(Dataset):
    """Samples with the fields of several datasets of one length, side by side."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = list(datasets)
        if len({len(dataset) for dataset in self.datasets}) != 1:
            raise ValueError("`datasets` of ComposeDataset expects datasets of one length")

    def __getitem__(self, idx: int) -> Any:
        return tuple(field for dataset in self.datasets for field in _fields(dataset[idx]))

    def __len__(self) -> int:
        return len(self.datasets[0])


class ConcatDataset(Dataset):
    """The samples of several datasets, one dataset after the other."""

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        self.cumulative_sizes = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, idx: int) -> Any:
        number = range(len(self))[idx]
        at = bisect.bisect_right(self.cumulative_sizes, number)
        return self.datasets[at][number - (self.cumulative_sizes[at - 1] if at else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1] if self.datasets else 0


class ChainDataset(IterableDataset):
    """The samples of several iterable datasets, one dataset after the other."""

    def __init__(self, datasets: Iterable[IterableDataset]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.datasets)


class Subset(Dataset):
    """Some samples of a dataset."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, idx: int) -> Any:
        return self.dataset[self.indices[idx]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Dataset, lengths: Sequence[int], generator: Any = None) -> list[Subset]:
    """Returns disjoint random parts of a dataset, of these lengths."""
    if sum(lengths) != len(dataset):
        raise ValueError(f"`lengths` of `random_split` expects a sum of {len(dataset)}, got {sum(lengths)}")
    numbers = list(range(len(dataset)))
    random.shuffle(numbers)
    ends = list(itertools.accumulate(lengths))
    return [Subset(dataset, numbers[end - length : end]) for length, end in zip(lengths, ends)]


class Sampler:
    """Chooses the order of the samples. Override `__iter__`."""

    def __init__(self, data_source: Any = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"`__iter__` of {type(self).__name__}")

    def __len__(self) -> int:
        return len(self.data_source)


class SequenceSampler(Sampler):
    """The samples in their order."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))


class RandomSampler(Sampler):
    """The samples in random order, or drawn with replacement."""

    def __init__(
        self, data_source: Any, replacement: bool = False, num_samples: int | None = None, generator: Any = None
    ) -> None:
        super().__init__(data_source)
        self.replacement, self._count = replacement, num_samples

    def __iter__(self) -> Iterator[int]:
        samples = range(len(self.data_source))
        return iter(random.choices(samples, k=len(self)) if self.replacement else random.sample(samples, len(self)))

    def __len__(self) -> int:
        return len(self.data_source) if self._count is None else self._count


class WeightedRandomSampler(Sampler):
    """Samples drawn by weight."""

    def __init__(self, weights: Sequence[float], num_samples: int, replacement: bool = True) -> None:
        super().__init__()
        self._weights, self._count, self._replacement = np.asarray(weights, np.float64), num_samples, replacement

    def __iter__(self) -> Iterator[int]:
        shares = self._weights / self._weights.sum()
        return iter(np.random.choice(len(shares), self._count, self._replacement, shares).tolist())

    def __len__(self) -> int:
        return self._count


class BatchSampler(Sampler):
    """Chooses the indices of the samples of each batch."""

    def __init__(
        self,
        dataset: Dataset | None = None,
        sampler: Iterable[int] | None = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        if (dataset is None) == (sampler is None):
            raise ValueError("BatchSampler expects either `dataset` or `sampler`")
        if batch_size < 1:
            raise ValueError(f"`batch_size` expects at least 1, got {batch_size}")
        self._dataset, self._sampler = dataset, sampler
        self.shuffle, self.batch_size, self.drop_last = shuffle, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        numbers = list(range(len(self._dataset)) if self._dataset is not None else self._sampler or ())
        if self.shuffle:
            random.shuffle(numbers)
        yield from _batches(numbers, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        samples = len(self._dataset if self._dataset is not None else self._sampler)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


class DistributedBatchSampler(BatchSampler):
    """Chooses the samples of this worker: every worker gets as many, the last ones twice if they do not divide."""

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, None, shuffle, batch_size, drop_last)
        self.nranks = _distributed.get_world_size() if num_replicas is None else num_replicas
        self.local_rank = _distributed.get_rank() if rank is None else rank
        self.dataset, self.epoch = dataset, 0
        self.num_samples = -(-len(dataset) // self.nranks)
        self.total_size = self.num_samples * self.nranks

    def __iter__(self) -> Iterator[list[int]]:
        numbers = list(range(len(self.dataset)))
        numbers += numbers[: self.total_size - len(numbers)]
        if self.shuffle:
            # The same order on every worker, another one in every epoch.
            np.random.RandomState(self.epoch).shuffle(numbers)
            self.epoch += 1
        rounds = range(self.local_rank * self.batch_size, self.total_size, self.batch_size * self.nranks)
        even = self.total_size // (self.batch_size * self.nranks) * self.batch_size * self.nranks
        mine = [number for start in rounds if start < even for number in numbers[start : start + self.batch_size]]
        rest = (self.total_size - even) // self.nranks
        mine += numbers[even + self.local_rank * rest : even + (self.local_rank + 1) * rest]
        yield from _batches(mine, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        samples = self.num_samples
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next epoch."""
        self.epoch = epoch


class DataLoader:
    """Batches of a dataset: a list of arrays each, or with `return_list=False` what `Executor.run` takes as `feed`.

    A thread reads ahead (`use_buffer_reader`), or `num_workers` threads. They share the process: a dataset need not be
    copied, nor split among them.
    """

    def __init__(
        self,
        dataset: Any,
        feed_list: Sequence[Any] | None = None,
        places: Any = None,
        return_list: bool = True,
        batch_sampler: Iterable[list[int]] | None = None,
        batch_size: int | None = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        use_buffer_reader: bool = True,
        prefetch_factor: int = 2,
        use_shared_memory: bool = True,
        timeout: int = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        persistent_workers: bool = False,
    ) -> None:
        if not return_list and not feed_list:
            raise ValueError("`return_list=False` of DataLoader needs `feed_list`, the variables to feed")
        if timeout != 0:
            raise NotImplementedError(f"`timeout={timeout}` of DataLoader: it waits for its dataset")
        if worker_init_fn is not None:
            raise NotImplementedError("`worker_init_fn` of DataLoader: its workers are threads of this process")
        if isinstance(dataset, IterableDataset) and (shuffle or batch_sampler is not None):
            raise ValueError(
                "`shuffle` and `batch_sampler` of DataLoader need samples by number, not an IterableDataset"
            )
        self.dataset, self.return_list, self.num_workers = dataset, return_list, num_workers
        self._names = [one.name if isinstance(one, _Variable) else str(one) for one in feed_list or ()]
        self._collate = _collate if collate_fn is None else collate_fn
        self._ahead = max(1, prefetch_factor) * num_workers
        self._reads_ahead = use_buffer_reader or num_workers > 0
        self.batch_size, self.drop_last = batch_size, drop_last
        self.batch_sampler = batch_sampler
        if batch_sampler is None and batch_size is not None and not isinstance(dataset, IterableDataset):
            self.batch_sampler = BatchSampler(dataset, None, shuffle, batch_size, drop_last)

    def __iter__(self) -> Iterator[Any]:
        batches = self._arrays()
        if self._reads_ahead and (self.num_workers == 0 or isinstance(self.dataset, IterableDataset)):
            batches = _read_ahead(batches, self._ahead)
        for batch in batches:
            if not self.return_list:
                yield [dict(zip(self._names, batch))]
            else:
                yield [_with_numpy(field) for field in batch] if type(batch) is list else batch

    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def __len__(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            # `list()` treats a TypeError as "length unknown".
            raise TypeError(f"{type(self.dataset).__name__} does not know how many samples it has")
        if self.batch_sampler is None:
            return len(self.dataset)
        return len(self.batch_sampler)

    def _arrays(self) -> Iterator[Any]:
        if isinstance(self.dataset, IterableDataset):
            if self.batch_size is None:
                yield from (self._collated([sample], False) for sample in self.dataset)
            else:
                for samples in _batches(self.dataset, self.batch_size, self.drop_last):
                    yield self._collated(samples)
            return
        if self.batch_sampler is None:
            yield from (self._collated([self.dataset[i]], False) for i in range(len(self.dataset)))
            return

        def read(numbers: list[int]) -> Any:
            return self._collated([self.dataset[i] for i in numbers])

        if self.num_workers == 0:
            yield from map(read, self.batch_sampler)
            return
        with ThreadPoolExecutor(self.num_workers) as pool:
            waiting: list[Any] = []
            for numbers in self.batch_sampler:
                waiting.append(pool.submit(read, numbers))
                if len(waiting) >= self._ahead:
                    yield waiting.pop(0).result()
            for one in waiting:
                yield one.result()

    def _collated(self, samples: list[Any], together: bool = True) -> Any:
        return self._collate(samples) if together else [np.asarray(field) for field in _fields(samples[0])]

    @staticmethod
    def from_generator(
        feed_list: Sequence[Any] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> GeneratorLoader:
        """Returns a loader of batches from a generator, which is set afterwards."""
        return GeneratorLoader(feed_list, capacity, return_list, iterable, drop_last)


class _Array(np.ndarray[Any, Any]):
    """An array with the method by which scripts make one of a tensor."""

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the array itself."""
        return self.view(np.ndarray)


def _with_numpy(field: Any) -> Any:
    return field.view(_Array) if type(field) is np.ndarray else field


class GeneratorLoader:
    """Batches from a generator of samples, of lists of samples, or of batches.

    It is iterated over, or with `iterable=False` belongs to the program of its variables: after `start()`,
    `exe.run(program)` without a feed takes the next batch, and raises `EOFException` after the last.
    """

    def __init__(
        self,
        feed_list: Sequence[Any] | None,
        capacity: int | None,
        return_list: bool,
        iterable: bool = True,
        drop_last: bool = True,
    ) -> None:
        if not (return_list and iterable) and not feed_list:
            raise ValueError("a loader that feeds a program needs `feed_list`, the variables to feed")
        self._variables, self._capacity, self._return_list = list(feed_list or ()), capacity or 0, return_list
        self._drop_last = drop_last
        self._reader: Callable[[], Iterable[Any]] | None = None
        if not iterable:
            _feeding.belongs_to(self, self._variables[0].program)

    def set_sample_generator(
        self, reader: Callable[[], Iterable[Any]], batch_size: int, drop_last: bool = True, places: Any = None
    ) -> GeneratorLoader:
        """Takes a function that returns an iterator of samples."""
        return self.set_sample_list_generator(lambda: _batches(reader(), batch_size, drop_last))

    def set_sample_list_generator(self, reader: Callable[[], Iterable[Any]], places: Any = None) -> GeneratorLoader:
        """Takes a function that returns an iterator of lists of samples."""
        return self.set_batch_generator(lambda: map(_collate, reader()))

    def set_batch_generator(self, reader: Callable[[], Iterable[Any]], places: Any = None) -> GeneratorLoader:
        """Takes a function that returns an iterator of batches, with one array per field."""
        self._reader = reader
        return self

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = set_sample_list_generator
    decorate_batch_generator = set_batch_generator

    def start(self) -> None:
        """Begins a pass: `exe.run(program)` takes the batches."""
        _feeding.start(self, self._feeds())

    def reset(self) -> None:
        """Ends a pass, also before its last batch."""
        _feeding.reset(self)

    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        for feed in self._feeds():
            yield list(feed.values()) if self._return_list else [feed]

    def _feeds(self) -> Iterator[dict[str, Any]]:
        if self._reader is None:
            raise ValueError("set a generator first: `set_sample_generator` or `set_batch_generator`")
        names = [one.name if isinstance(one, _Variable) else str(one) for one in self._variables]
        batches = iter(self._reader())
        for batch in _read_ahead(batches, self._capacity) if self._capacity else batches:
            if isinstance(batch, dict):
                yield batch
            else:
                arrays = list(batch)
                yield dict(zip(names or map(str, range(len(arrays))), arrays))


class PyReader(GeneratorLoader):
    """Batches from a generator: the loader of PaddlePaddle 1.x.

    It is iterated over, or with `iterable=False` feeds the program of its variables between `start()` and `reset()`.
    """

    def __init__(
        self,
        feed_list: Sequence[Any] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        super().__init__(feed_list, capacity, return_list, iterable)

    def decorate_sample_generator(
        self,
        sample_generator: Callable[[], Iterable[Any]],
        batch_size: int,
        drop_last: bool = True,
        places: Any = None,
    ) -> None:
        """Takes a function that returns an iterator of samples."""
        self.set_sample_generator(sample_generator, batch_size, drop_last)

    def decorate_sample_list_generator(self, reader: Callable[[], Iterable[Any]], places: Any = None) -> None:
        """Takes a function that returns an iterator of lists of samples."""
        self.set_sample_list_generator(reader)

    def decorate_batch_generator(self, reader: Callable[[], Iterable[Any]], places: Any = None) -> None:
        """Takes a function that returns an iterator of batches, with one array per field."""
        self.set_batch_generator(reader)

    decorate_paddle_reader = decorate_sample_list_generator
    decorate_tensor_provider = decorate_batch_generator


def get_worker_info() -> None:
    """Returns None: datasets are read in this process."""


def default_collate_fn(batch: list[Any]) -> Any:
    """Returns one array per field."""
    return _collate(batch)


def _fields(sample: Any) -> list[Any]:
    if isinstance(sample, dict):
        return list(sample.values())
    # A generator may yield a `zip` or a `map`.
    return list(sample) if isinstance(sample, (list, tuple, Iterator)) else [sample]


def _collate(samples: list[Any]) -> list[Any]:
    columns = zip(*(_fields(sample) for sample in samples))
    return [_column(column) for column in columns]


_shape = operator.attrgetter("shape")


def _column(values: Sequence[Any]) -> Any:
    arrays = values if set(map(type, values)) == {np.ndarray} else [np.asarray(value) for value in values]
    shapes = set(map(_shape, arrays))
    if len(shapes) != 1:
        # Rows of different lengths are a slot, which is fed as a list.
        return [array.tolist() for array in arrays]
    (shape,) = shapes
    # A quarter of the time of `np.stack`, which makes a view of every array first.
    return np.concatenate(arrays).reshape(len(arrays), *shape) if shape else np.array(arrays)


def _batches(samples: Iterable[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == size:
            yield batch
            batch = []
    if batch and not drop_last:
        yield batch


class _ReadAhead:
    """Batches that another thread reads, up to `count` of them ahead.

    After `n` batches have been taken, the thread has read `n + count`, also when the caller stops there: how far a
    reader of random samples has come does not depend on the speed of a thread.
    """

    def __init__(self, batches: Iterator[Any], count: int) -> None:
        self._batches, self._allowed = batches, count
        self._ready: list[tuple[str, Any]] = []
        self._changed = threading.Condition()
        self._read_so_far, self._is_stopped = 0, False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopped or self._read_so_far < self._allowed)
                if self._read_so_far >= self._allowed:
                    return
            try:
                item = ("batch", next(self._batches))
            except StopIteration:
                item = ("end", None)
            except BaseException as error:
                item = ("error", error)
            with self._changed:
                self._read_so_far += 1
                self._ready.append(item)
                self._changed.notify_all()
            if item[0] != "batch":
                return

    def take(self) -> tuple[str, Any]:
        """Waits for the next batch, the end or an error."""
        with self._changed:
            self._allowed += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ready)
            return self._ready.pop(0)

    def stop(self) -> None:
        """Waits until the thread has ended, because the next pass may use the same objects."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()


def _read_ahead(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Returns the same batches, of which another thread reads up to `count` ahead."""
    reader = _ReadAhead(batches, max(1, count))
    try:
        while True:
            kind, value = reader.take()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        reader.stop()


__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ComposeDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedBatchSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequenceSampler",
    "Subset",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate_fn",
    "get_worker_info",
    "random_split",
]
__getattr__ = compat.absent(__name__, __all__)
