"""Loaders of data while a model's file is loaded: a batch has its shapes, in the order of the data, in this process.

Samplers and workers draw numbers and look at them, which fake tensors do not have. For a GPU, tensors that the data
lies in are the host's, as soon as a batch was made of them, which is not.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from tmmu.passes.capture.record.places import mark_host
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import cpp_address, tree_leaves


@contextmanager
def loaders_in_order(device: str) -> Iterator[None]:
    """Block in which ``iter(loader)`` neither shuffles nor starts processes; batch sizes are the loader's own."""

    def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
        for batch in _batches(loader):
            if device != "cpu":
                shared = set(map(_storage, _dense(batch)))
                data = _dense(getattr(loader.dataset, "__dict__", loader.dataset))
                mark_host(tensor for tensor in data if _storage(tensor) not in shared)
            yield batch

    with replace_attribute(DataLoader, "__iter__", iterate):
        yield


def _dense(value: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]


def _storage(tensor: torch.Tensor) -> int:
    return cpp_address(tensor.untyped_storage())


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
