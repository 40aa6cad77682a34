"""Zeroing, and the debug fill: a reproducible pattern by which a read of unwritten memory is recognized."""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3

DOMAIN: Final = b"tmmu_fill"
# Rounds and constants of Philox4x32-10, as published; the tests have its known answers.
ROUNDS: Final = 10
MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
BLOCK_BYTES: Final = 16
CHUNK_BLOCKS: Final = 1 << 18
"""4 MiB of pattern at a time: fits the caches, and bounds what the fill itself allocates."""

Words: TypeAlias = npt.NDArray[np.uint64]


def zero_tensor(view: torch.Tensor) -> None:
    """Sets every element of ``view`` to zero bytes: ``UML_OS.TMMU.ZeroTensor_v1``. Gaps between them are untouched."""
    view.zero_()


def fill_tensor(view: torch.Tensor, token: bytes, address: int) -> None:
    """Fills ``view``, in the order of its elements, with the pattern of (token, address); on any device."""
    size = view.element_size()
    flat = view.view(-1) if view.is_contiguous() else torch.empty(view.numel(), dtype=view.dtype)
    per_chunk = CHUNK_BLOCKS * BLOCK_BYTES // size
    for start in range(0, view.numel(), per_chunk):
        part = flat[start : start + per_chunk]
        first = start * size // BLOCK_BYTES
        pattern = fill_pattern(token, address, part.numel() * size, first_block=first)
        part.view(torch.uint8).copy_(torch.from_numpy(pattern))
    if not view.is_contiguous():
        view.copy_(flat.view(view.shape))


def fill_pattern(token: bytes, address: int, length: int, *, first_block: int = 0) -> npt.NDArray[np.uint8]:
    """``uint8[length]``: Philox4x32-10 blocks from ``first_block`` on, words little-endian.

    The key is the first 8 bytes of BLAKE3(token, "tmmu_fill", address as u64 little-endian); the counter of
    a block is its index.
    """
    digest = blake3(token + DOMAIN + address.to_bytes(8, "little")).digest()
    key = (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
    blocks = -(-length // BLOCK_BYTES)
    index = np.arange(first_block, first_block + blocks, dtype=np.uint64)
    counter = np.zeros((4, blocks), dtype=np.uint64)
    counter[0], counter[1] = index & np.uint64(0xFFFFFFFF), index >> np.uint64(32)
    words = np.ascontiguousarray(philox4x32(counter, key).T, dtype="<u4")
    return words.reshape(-1).view(np.uint8)[:length]


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """``uint64[4, n]`` of 32-bit words: Philox4x32-10 (Salmon et al., 2011) of each counter under one key."""
    c0, c1, c2, c3 = counter
    low = np.uint64(0xFFFFFFFF)
    high = np.uint64(32)
    for round_index in range(ROUNDS):
        k0, k1 = (np.uint64((word + round_index * step) & 0xFFFFFFFF) for word, step in zip(key, WEYL, strict=True))
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> high) ^ c1 ^ k0, p1 & low, (p0 >> high) ^ c3 ^ k1, p0 & low
    return np.stack([c0, c1, c2, c3])
