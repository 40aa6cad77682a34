"""Loaders of data while a model's file is loaded: a batch has its shapes, in the order of the data, in this process.

Samplers and workers draw numbers and look at them, which fake tensors do not have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from tmmu.passes.capture.replace import replace_attribute


@contextmanager
def loaders_in_order() -> Iterator[None]:
    """Block in which ``iter(loader)`` neither shuffles nor starts processes; batch sizes are the loader's own."""
    with replace_attribute(DataLoader, "__iter__", _batches):
        yield


def _batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """The loader's batches; of one with a batch sampler of its own, as large as that sampler's size says."""
    size = loader.batch_size if loader.batch_sampler is None else getattr(loader.batch_sampler, "batch_size", 1)
    for samples in _groups(_samples(loader.dataset), size or 1, is_whole=loader.drop_last):
        yield loader.collate_fn(samples if size is not None else samples[0])


def _samples(dataset: Any) -> Iterator[Any]:
    """The data in order."""
    if isinstance(dataset, IterableDataset):
        yield from dataset
        return
    yield from (dataset[index] for index in range(len(dataset)))


def _groups(samples: Iterator[Any], size: int, *, is_whole: bool) -> Iterator[list[Any]]:
    """So many at a time; the last fewer, unless ``is_whole``."""
    while (group := list(islice(samples, size))) and not (is_whole and len(group) < size):
        yield group
