"""A planned training step is eager's, bit for bit: loss, gradients, batch statistics and dropout's random numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.kernels import plain_kernels
from tests.runtime.harness import Make, Tensors, bind_module, random_ids, randomize, same_bits
from tests.unit.passes import models


def loss(model: Callable[..., torch.Tensor], **inputs: Any) -> torch.Tensor:
    return model(**inputs).float().square().mean()


def eager_step(real: nn.Module, inputs: Tensors) -> list[torch.Tensor]:
    real.zero_grad(set_to_none=True)
    value = loss(real, **inputs)
    value.backward()  # type: ignore[no-untyped-call]
    return [value.detach(), *(p.grad for p in real.parameters() if p.grad is not None)]


def decoder_with_dropout() -> nn.Module:
    return models.Decoder(dropout=0.3)


CASES: dict[str, tuple[Make, Callable[[int], Tensors]]] = {
    "decoder": (models.Decoder, lambda s: {"ids": random_ids(2, 6, high=50, seed=s)}),
    "dropout": (decoder_with_dropout, lambda s: {"ids": random_ids(2, 6, high=50, seed=s)}),
    "convolutional": (
        models.Convolutional,
        lambda s: {"pixels": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(s))},
    ),
    "recurrent": (
        models.Recurrent,
        lambda s: {"x": torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(s))},
    ),
}


@pytest.mark.parametrize("preset", ["train_full", "remat_enabled"])
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_have_the_bits_of_eager(name: str, preset: str) -> None:
    make, inputs = CASES[name]
    real = randomize(make()).train()
    with plain_kernels():
        executor = bind_module(make, real, inputs(0), mode="backward", preset=preset, loss=loss)
        for seed in (0, 1, 0):
            torch.manual_seed(seed)
            expected = eager_step(real, inputs(seed))
            after = torch.get_rng_state()
            torch.manual_seed(seed)
            planned = executor(**inputs(seed))
            assert torch.get_rng_state().equal(after)
            assert len(planned) == len(expected)
            assert all(map(same_bits, planned, expected))
    for label, buffer in real.named_buffers():
        assert executor.state(label).equal(buffer.reshape(-1).view(torch.uint8)), label
