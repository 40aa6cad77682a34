"""Planned is eager, bit for bit: small models, call after call, in every preset."""

import pytest
import torch

from tests.kernels import plain_kernels
from tests.runtime.harness import Make, Tensors, bind_module, random_ids, randomize, run_eager, same_bits
from tests.unit.passes import models


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CASES: dict[str, tuple[Make, tuple[Tensors, Tensors]]] = {
    "decoder": (models.Decoder, tuple({"ids": random_ids(2, 6, high=50, seed=s)} for s in (0, 1))),
    "convolutional": (models.Convolutional, tuple({"pixels": rand(2, 3, 8, 8, seed=s)} for s in (0, 1))),
    "cached": (models.Cached, tuple({"x": rand(1, 16, seed=s)} for s in (0, 1))),
    "recurrent": (models.Recurrent, tuple({"x": rand(2, 5, 8, seed=s)} for s in (0, 1))),
    "odd": (models.ViewsAndWrites, tuple({"x": rand(3, 4, seed=s), "y": rand(3, 2, seed=s + 9)} for s in (0, 1))),
}


@pytest.mark.parametrize("preset", ["inference", "train_full"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_state_have_the_bits_of_eager(name: str, preset: str) -> None:
    make, batches = CASES[name]
    real = randomize(make()).eval()
    with plain_kernels():
        executor = bind_module(make, real, batches[0], preset=preset)
        for inputs in (*batches, batches[0]):
            expected = run_eager(real, inputs)
            planned = executor(**inputs)
            assert len(planned) == len(expected)
            assert all(map(same_bits, planned, expected))
    for label, buffer in real.named_buffers():
        if label in ("keys", "calls"):
            assert executor.state(label).equal(buffer.view(-1).view(torch.uint8))
