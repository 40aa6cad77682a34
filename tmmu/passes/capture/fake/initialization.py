"""How weights get their values while planning: constants as they are, random ones by one draw that nobody can read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

_RANDOM: Final = (
    "uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_",
    "kaiming_normal_", "orthogonal_", "sparse_",
)  # fmt: skip


def _drawn(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """The tensor, marked as random: some initializers look at what they drew, and there is nothing to look at."""
    with torch.no_grad():
        return tensor.uniform_()


@contextmanager
def quick_initialization() -> Iterator[None]:
    """While inside, the random initializers of ``torch.nn.init`` are one operator each."""
    originals = {name: getattr(nn.init, name) for name in _RANDOM}
    for name in originals:
        setattr(nn.init, name, _drawn)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(nn.init, name, original)
