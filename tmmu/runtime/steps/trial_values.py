"""What arguments hold while a step is tried: a few draws from seeds of our own, the same in every process.

A draw fills every argument that may be filled. Its kind says with what: normal numbers; numbers of very different
magnitudes; finite extremes (zeros of both signs, the least and the largest numbers, subnormals) among normal numbers;
those and infinities and NaN. Numbers come from one block per kind and dtype, drawn once for the process and laid over
a tensor from a place in it that differs by argument and draw. Nothing here reads or changes a generator of torch's or
of the caller's.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import torch

from tmmu.runtime.memory.slab import PACKED, byte_range, in_memory
from tmmu.torch_private import schema_of

NORMAL, WIDE, EXTREME, NONFINITE = "normal", "wide", "extreme", "nonfinite"
MANY: Final = (NORMAL, EXTREME, NONFINITE, WIDE, NORMAL, EXTREME, NONFINITE, NORMAL)
SOME: Final = (NORMAL, NONFINITE, WIDE)
FEW: Final = (NORMAL, NONFINITE)
"""Draws for tensors of up to ``MANY_ELEMENTS``, of up to ``SOME_ELEMENTS``, of more: few elements agree by chance."""
MANY_ELEMENTS: Final = 1 << 12
SOME_ELEMENTS: Final = 1 << 16
BLOCK: Final = 4093
"""Elements of a block; a prime, so that no axis of a tensor is a whole number of blocks."""
STEP: Final = 1597
"""How far in the block the next argument of a draw, or the next draw, begins."""
SEED: Final = 0x746D6D75
MAX_EXPONENT: Final = 40
"""Wide numbers are normal ones times a power of 2 up to this, either way."""
SPECIAL_SHARE: Final = 2
"""One element in so many of a block with extremes is one."""
MAX_INTEGER: Final = 100
"""Integers are 1 to this, and the same below zero in every other draw: no division by zero, and none that overflows."""


COUNTED: Final = frozenset(
    {"aten::polygamma", "aten::special_zeta"}
    | {f"aten::special_chebyshev_polynomial_{kind}" for kind in "tuvw"}
    | {f"aten::special_shifted_chebyshev_polynomial_{kind}" for kind in "tuvw"}
    | {f"aten::special_hermite_polynomial_{kind}" for kind in ("h", "he")}
    | {"aten::special_laguerre_polynomial_l", "aten::special_legendre_polynomial_p"}
)
"""Operators whose kernels take as many steps for an element as its value says: a degree, or the way up to zero. At
10^12 one does not return in an hour."""


def draws_of(operator: Any, elements: int, *, special: bool) -> tuple[str, ...]:
    """The kinds of the draws of an operator on tensors of at most so many elements.

    ``special`` ones only where they are safe, and normal numbers alone for operators that count.
    """
    kinds = MANY if elements <= MANY_ELEMENTS else SOME if elements <= SOME_ELEMENTS else FEW
    if schema_of(operator).name in COUNTED:
        return (NORMAL,) * len(kinds)
    return tuple(kind if special or kind == WIDE else NORMAL for kind in kinds)


def fill_arguments(tensors: Iterable[torch.Tensor], kind: str, draw: int, *, integers: bool) -> None:
    """Fills the memory of floating and complex tensors, gaps included, with draw number ``draw``.

    ``integers`` and bools too, if asked for: elsewhere they may index another tensor, and random ones be out of range.
    """
    for position, tensor in enumerate(tensors):
        if tensor.is_floating_point() or tensor.is_complex() or integers:
            start = (STEP * (draw * 7 + position)) % BLOCK
            _tile(elements_of(tensor), _block_for(tensor.dtype, kind, draw), start)


def clear_arguments(tensors: Iterable[torch.Tensor]) -> None:
    """Zeros where draws were: what is left of one may be no index that a kernel, which need not check it, can take."""
    for tensor in tensors:
        elements_of(tensor).zero_()


def elements_of(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in the byte range of a tensor as one axis; of a complex one, its real and imaginary parts."""
    low, high = byte_range(tensor)
    width = tensor.element_size()
    flat = in_memory(tensor.detach()).as_strided(((high - low) // width,), (1,), low // width)
    if tensor.is_complex():
        return flat.view(_PARTS[tensor.dtype])
    return flat.view(torch.uint8) if tensor.dtype in PACKED else flat


_PARTS: Final = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


def _tile(flat: torch.Tensor, block: torch.Tensor, start: int) -> None:
    count, rest = divmod(flat.numel(), BLOCK)
    tile = block[start : start + BLOCK]
    if count:
        flat[: count * BLOCK].view(count, BLOCK).copy_(tile)
    flat[count * BLOCK :].copy_(tile[:rest])


def _block_for(dtype: torch.dtype, kind: str, draw: int) -> torch.Tensor:
    if dtype in PACKED:
        return _bytes()
    part = _PARTS.get(dtype, dtype)
    return _numbers(part, kind) if part.is_floating_point else _integers(part, negative=draw % 2 == 1)


@cache
def _numbers(dtype: torch.dtype, kind: str) -> torch.Tensor:
    """``dtype[2 * BLOCK]``: a block, twice, so that one may begin anywhere in it."""
    generator = torch.Generator().manual_seed(SEED)
    block = torch.randn(BLOCK, generator=generator, dtype=torch.float64)
    if kind == WIDE:
        exponents = torch.randint(-MAX_EXPONENT, MAX_EXPONENT + 1, (BLOCK,), generator=generator)
        block = block * torch.pow(2.0, exponents.double())
    elif kind != NORMAL:
        extremes = torch.tensor(_extremes(dtype, finite=kind == EXTREME), dtype=torch.float64)
        chosen = torch.randint(0, len(extremes), (BLOCK,), generator=generator)
        is_special = torch.randint(0, SPECIAL_SHARE, (BLOCK,), generator=generator) == 0
        block = torch.where(is_special, extremes[chosen], block)
    return torch.cat([block, block]).to(dtype)


def _extremes(dtype: torch.dtype, *, finite: bool) -> tuple[float, ...]:
    limits = torch.finfo(dtype)
    edges = (0.0, limits.tiny / 2, limits.max)
    numbers = (*edges, limits.tiny, limits.tiny * limits.eps, 1.0 + limits.eps) if finite else (*edges, float("inf"))
    signed = (*numbers, *(-number for number in numbers))
    return signed if finite else (*signed, float("nan"))


@cache
def _integers(dtype: torch.dtype, *, negative: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    high = 2 if dtype == torch.bool else MAX_INTEGER
    block = torch.randint(high, (BLOCK,), generator=generator)
    if dtype != torch.bool:
        block += 1
        block *= torch.randint(0, 2, (BLOCK,), generator=generator) * 2 - 1 if negative and dtype.is_signed else 1
    return torch.cat([block, block]).to(dtype)


@cache
def _bytes() -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, 256, (2 * BLOCK,), generator=generator, dtype=torch.uint8)
