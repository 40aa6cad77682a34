"""Jagged (nested) tensors on fake ones: the length of their rows is a number of eager's kind, not a symbol.

``torch.nested`` asks fake offsets for a symbolic length, which only torch's compiler can give. In a trace two tensors
have one length if they share offsets, as in eager.
"""

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from tmmu import torch_private
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import JAGGED_LENGTH, FakeTensor

_FIRST: Final = 1 << 40
"""Of the lengths of fake offsets: above those that eager has handed out."""


@contextmanager
def jagged_rows() -> Iterator[None]:
    """Block in which jagged tensors can be made of fake ones."""
    numbers: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
    unused = itertools.count(_FIRST)

    def length_of(offsets: torch.Tensor, *, coeff: int = 1) -> Any:
        known = numbers.get(id(offsets))
        if known is None or known[0]() is not offsets:
            known = numbers[id(offsets)] = (weakref.ref(offsets), next(unused))
        return torch.SymInt(torch_private.NestedIntNode(known[1], coeff))  # type: ignore[no-untyped-call]

    with replace_attribute(FakeTensor, JAGGED_LENGTH, length_of):
        yield
