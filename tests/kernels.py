"""Real runs with the kernels that captured models name."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_kernels() -> Iterator[None]:
    """The same kernels on both sides: without oneDNN, as models are captured."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Small kernels gain nothing from a second thread, and wait for it where others want the processor."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
