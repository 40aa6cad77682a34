"""Contexts for runs of real kernels."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Without oneDNN: LSTMs are taken apart, and other operators' kernels are torch's own."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread: small kernels gain nothing from a second one, and wait for it on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
