"""Datasets: text files as batches, streamed or in memory, and base classes of programs that write such text."""

from .data_generator import DataGenerator, MultiSlotDataGenerator, MultiSlotStringDataGenerator
from .dataset import DatasetBase, InMemoryDataset, QueueDataset
from .words import WordsDataset

__all__ = [
    "DataGenerator",
    "DatasetBase",
    "InMemoryDataset",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    "QueueDataset",
    "WordsDataset",
]
