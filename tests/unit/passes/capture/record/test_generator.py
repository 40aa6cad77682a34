"""Who draws from the default generator, and what its states are."""

from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from tmmu.passes.autograd.joint_graph import HAND_OUT
from tmmu.passes.capture.record.generator import (
    RANDOM_STATE,
    SET_RANDOM_STATE,
    draws,
    seeded_state,
    state_bytes,
)
from tmmu.torch_private import cpp_address

aten = torch.ops.aten
X = torch.ones(4)
OWN = torch.Generator()
DEFAULT = frozenset({cpp_address(torch.default_generator)})


@pytest.mark.parametrize(
    ("call", "args", "kwargs", "expected"),
    [
        (aten.rand.default, ([4],), {}, True),
        (aten.native_dropout.default, (X, 0.5, True), {}, True),
        (aten.bernoulli_.float, (X, 0.5), {}, True),
        (aten.bernoulli_.float, (X, 0.5), {"generator": torch.default_generator}, True),
        (aten.bernoulli_.float, (X, 0.5), {"generator": OWN}, False),
        (aten.rand.generator, ([4],), {"generator": OWN}, False),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (X, X, X, 0.1), {}, True),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (X, X, X), {}, False),
        (aten._scaled_dot_product_efficient_attention.default, (X, X, X, None, True), {"dropout_p": 0.1}, True),
        (aten._scaled_dot_product_efficient_attention.default, (X, X, X, None, True), {}, False),
        (aten._scaled_dot_product_efficient_attention_backward.default, (X,) * 8 + (0.1, [True] * 4), {}, False),
        (aten.native_dropout_backward.default, (X, X, 2.0), {}, False),
        (aten.add.Tensor, (X, X), {}, False),
        (HAND_OUT, ([X],), {}, False),
    ],
)
def test_calls_draw_or_do_not(call: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], expected: bool) -> None:
    assert draws(call, args, kwargs, DEFAULT) is expected


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63])
def test_seeded_state_is_that_of_a_generator(seed: int) -> None:
    assert seeded_state("cpu", seed).equal(torch.Generator().manual_seed(seed).get_state())
    on_gpu = bytes(seeded_state("cuda", seed).tolist())
    assert on_gpu == (seed % 2**64).to_bytes(8, "little") + bytes(8)  # the seed, and how much was drawn
    assert (state_bytes("cpu"), state_bytes("cuda")) == (seeded_state("cpu", seed).numel(), len(on_gpu))


def test_state_is_set_from_any_offset_in_memory() -> None:
    memory = torch.zeros(8192, dtype=torch.uint8)
    place = memory[64 : 64 + state_bytes("cpu")]
    torch.manual_seed(5)
    place.copy_(RANDOM_STATE("cpu"))
    drawn = torch.rand(3)
    SET_RANDOM_STATE(place)
    assert torch.rand(3).equal(drawn)
