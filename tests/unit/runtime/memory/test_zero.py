"""Zeroing leaves nothing behind; the debug fill is Philox, and a function of token and address alone."""

import numpy as np
import pytest
import torch
from blake3 import blake3

from tmmu.runtime.memory.zero import BLOCK_BYTES, CHUNK_BLOCKS, fill_pattern, fill_tensor, philox4x32, zero_tensor

TOKEN = bytes(range(64))

# The published known answers of Philox4x32-10 (Random123).
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    words = np.array([[int(word, 16)] for word in counter.split()], dtype=np.uint64)
    k0, k1 = (int(word, 16) for word in key.split())
    assert [f"{int(word):08x}" for word in philox4x32(words, (k0, k1))[:, 0]] == answer.split()


def test_philox_blocks_are_independent_of_their_neighbors() -> None:
    words = np.array([[int(c.split()[i], 16) for c, _, _ in KNOWN] for i in range(4)], dtype=np.uint64)
    together = philox4x32(words, (7, 9))
    for column in range(len(KNOWN)):
        assert (together[:, [column]] == philox4x32(words[:, [column]], (7, 9))).all()


def test_fill_pattern_is_keyed_by_token_and_address_and_counted_by_block() -> None:
    digest = blake3(TOKEN + b"tmmu_fill" + (4096).to_bytes(8, "little")).digest()
    key = (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
    third = philox4x32(np.array([[2], [0], [0], [0]], dtype=np.uint64), key)[:, 0]
    want = b"".join(int(word).to_bytes(4, "little") for word in third)
    assert fill_pattern(TOKEN, 4096, 48)[32:].tobytes() == want
    past_32_bits = philox4x32(np.array([[5], [1], [0], [0]], dtype=np.uint64), key)[:, 0]
    want = b"".join(int(word).to_bytes(4, "little") for word in past_32_bits)
    assert fill_pattern(TOKEN, 4096, 16, first_block=2**32 + 5).tobytes() == want


def test_fill_pattern_differs_for_another_token_or_address() -> None:
    base = fill_pattern(TOKEN, 256, 64).tobytes()
    assert fill_pattern(TOKEN, 512, 64).tobytes() != base
    assert fill_pattern(TOKEN[::-1], 256, 64).tobytes() != base
    assert fill_pattern(TOKEN, 256, 61).tobytes() == base[:61]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.complex128])
def test_fill_tensor_fills_all_of_the_tensor_and_nothing_else(dtype: torch.dtype) -> None:
    arena = torch.zeros(512, dtype=torch.uint8)
    window = arena[64:192].view(dtype)
    fill_tensor(window, TOKEN, 256)
    assert arena[64:192].numpy().tobytes() == fill_pattern(TOKEN, 256, 128).tobytes()
    assert not arena[:64].any()
    assert not arena[192:].any()


def test_fill_tensor_continues_the_pattern_over_chunks() -> None:
    length = CHUNK_BLOCKS * BLOCK_BYTES + 40
    tensor = torch.empty(length, dtype=torch.uint8)
    fill_tensor(tensor, TOKEN, 0)
    assert tensor.numpy().tobytes() == fill_pattern(TOKEN, 0, length).tobytes()


def test_fill_tensor_leaves_gaps_between_strided_elements() -> None:
    whole = torch.zeros(8, 8, dtype=torch.int32)
    fill_tensor(whole[:, ::2], TOKEN, 256)
    assert whole[:, ::2].contiguous().numpy().tobytes() == fill_pattern(TOKEN, 256, 128).tobytes()
    assert not whole[:, 1::2].any()


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (4097,)])
def test_zero_tensor_is_idempotent(shape: tuple[int, ...]) -> None:
    tensor = torch.full(shape, 7.0)
    zero_tensor(tensor)
    zero_tensor(tensor)
    assert not tensor.any()


def test_zero_tensor_leaves_bytes_outside_the_view() -> None:
    whole = torch.ones(4, 6)
    zero_tensor(whole[1:3, ::2])
    assert whole.sum() == 24 - 6


def test_zero_tensor_clears_nans() -> None:
    tensor = torch.full((5,), float("nan"))
    zero_tensor(tensor)
    assert tensor.view(torch.uint8).sum() == 0
