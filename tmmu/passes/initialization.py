"""No random weights while planning: the initializers of ``torch.nn.init`` do nothing to tensors without bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_INITIALIZERS = tuple(
    name
    for name in dir(torch.nn.init)
    if name.endswith("_") and not name.startswith("_") and callable(getattr(torch.nn.init, name))
)


def _leave(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


@contextmanager
def no_initialization() -> Iterator[None]:
    """While inside, initializers return their tensor as it is."""
    originals = {name: getattr(torch.nn.init, name) for name in _INITIALIZERS}
    for name in originals:
        setattr(torch.nn.init, name, _leave)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.nn.init, name, original)
