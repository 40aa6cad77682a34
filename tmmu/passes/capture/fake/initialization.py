"""Initialization of weights while a model is built to be traced: constants as they are, random ones as one draw.

Some initializers look at what they drew (orthogonal, sparse, truncated), and a fake tensor has nothing to look at.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import nn

from tmmu.passes.capture.replace import replace_attribute

_RANDOM: Final = (
    "uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_",
    "kaiming_normal_", "orthogonal_", "sparse_",
)  # fmt: skip


def _draw_uniform(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """The tensor after one operator that draws, so that its value counts as random."""
    with torch.no_grad():
        return tensor.uniform_()


@contextmanager
def quick_initialization() -> Iterator[None]:
    """Block in which the random initializers of ``torch.nn.init`` are one operator each."""
    with ExitStack() as stack:
        for name in _RANDOM:
            stack.enter_context(replace_attribute(nn.init, name, _draw_uniform))
        yield
