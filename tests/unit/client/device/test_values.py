"""Tensors that are made there and looked at here."""

import copy

import numpy as np
import pytest
import torch

from tests.unit.client.device.conftest import Remote

FACTORIES = {
    "ones": lambda d: torch.ones(2, 3, device=d),
    "arange": lambda d: torch.arange(1, 9, 2, device=d),
    "arange of floats": lambda d: torch.arange(0.5, 3, device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "tensor of one number": lambda d: torch.tensor(2.5, device=d),
    "full": lambda d: torch.full((2,), 7, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 7, device=d),
    "zeros of bfloat16": lambda d: torch.zeros(3, dtype=torch.bfloat16, device=d),
    "complex": lambda d: torch.ones(3, dtype=torch.complex64, device=d) * 1j,
    "as_tensor": lambda d: torch.as_tensor(np.arange(4), device=d),
    "new": lambda d: torch.ones(2, device=d).new_tensor([1, 2]),
    "no elements": lambda d: torch.ones(0, 3, device=d).sum(0),
    "like": lambda d: torch.zeros_like(torch.ones(3, 2, device=d).t()),
    "by another tensor": lambda d: torch.arange(4, device=d)[[2, 0]],
    "mask": lambda d: torch.arange(6, device=d)[torch.arange(6, device=d) % 2 == 1],
    "nonzero": lambda d: torch.tensor([0, 3, 0, 1], device=d).nonzero(),
    "nothing": lambda d: torch.zeros(3, device=d).nonzero(),
    "unique": lambda d: torch.unique(torch.tensor([3, 1, 3], device=d), return_counts=True)[1],
    "masked_select": lambda d: torch.ones(2, 3, device=d).masked_select(torch.tensor([True, False, True], device=d)),
    "index_put": lambda d: torch.zeros(4, device=d).index_put_((torch.tensor([1], device=d),), torch.ones(1, device=d)),
    "sort": lambda d: torch.tensor([3.0, 1, 2], device=d).sort(descending=True)[1],
    "strides": lambda d: torch.arange(24.0, device=d).view(2, 3, 4).permute(2, 0, 1) + 1,
    "channels_last": lambda d: torch.ones(1, 2, 3, 3, device=d).to(memory_format=torch.channels_last),
    "dtype": lambda d: torch.arange(3, device=d).to(torch.float64),
    "einsum": lambda d: torch.einsum("ij,kj->ik", torch.ones(2, 3, device=d), torch.ones(4, 3, device=d)),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORIES)
def test_tensors_that_are_made_there_have_local_bits(remote: Remote, name: str) -> None:
    expected, result = FACTORIES[name]("cpu"), FACTORIES[name]("remote")
    assert result.device == torch.device("remote:0")
    assert (result.shape, result.stride(), result.dtype) == (expected.shape, expected.stride(), expected.dtype)
    back = result.cpu()
    assert type(back) is torch.Tensor
    assert back.numel() == 0 or back.stride() == expected.stride()
    assert torch.equal(back, expected)


def test_every_way_to_look_at_a_value_gives_it(remote: Remote) -> None:
    x = torch.arange(3.0, device="remote")
    assert (x[1].item(), int(x[2]), float(x[2]), bool(x[0]), [10, 11, 12][x[1].int()]) == (1.0, 2, 2.0, False, 11)
    assert x.tolist() == [0, 1, 2]
    assert np.array_equal(x.numpy(), [0, 1, 2])
    assert np.array_equal(np.asarray(x), [0, 1, 2])
    assert repr(x) == "tensor([0., 1., 2.], device='remote:0')"
    assert repr(torch.nn.Parameter(x)).endswith("device='remote:0', requires_grad=True)")
    assert f"{x[1]:.2f} {x.sum():.1f}" == "1.00 3.0"
    assert str(x.to("cpu", torch.int32)) == "tensor([0, 1, 2], dtype=torch.int32)"
    assert torch.equal(x, torch.arange(3.0, device="remote"))
    assert not torch.equal(x, x + 1)
    assert torch.allclose(x, x + 1e-9)
    assert x.to("remote") is x
    assert x.to("meta").device.type == "meta"


def test_a_fetched_tensor_is_the_callers_own(remote: Remote) -> None:
    x = torch.ones(3, device="remote")
    x.cpu().zero_()
    x.numpy()[0] = 5
    assert x.tolist() == [1, 1, 1]


def test_an_uploaded_tensor_is_as_it_was_when_it_went(remote: Remote) -> None:
    tensor = torch.ones(3)
    x = tensor.to("remote")
    tensor.zero_()
    assert x.tolist() == [1, 1, 1]
    target = torch.zeros(3)
    target.copy_(x)
    assert target.tolist() == [1, 1, 1]


def test_memory_that_is_made_empty_is_zeros(remote: Remote) -> None:
    torch.full((1000,), 3.0, device="remote").sum().item()
    for _ in range(3):
        assert not torch.empty(1000, device="remote").any()
        assert not torch.empty_strided((2, 2), (4, 1), device="remote").any()
        assert not torch.ones(3, device="remote").new_empty(500).any()


def test_copies_are_tensors_of_their_own(remote: Remote) -> None:
    x = torch.ones(2, device="remote")
    y = copy.deepcopy(x)
    x.zero_()
    assert y.tolist() == [1, 1]
    shared = copy.deepcopy([x, x])
    assert shared[0] is shared[1]


@pytest.mark.parametrize("draw", [torch.randn, torch.rand, lambda n, device: torch.randint(9, (n,), device=device)])
def test_draws_equal_those_of_the_cpu(remote: Remote, draw) -> None:
    def run(device: str) -> list[list[float]]:
        torch.manual_seed(3)
        values = [draw(20, device=device), torch.ones(20, device=device).uniform_()]
        dropped = torch.nn.functional.dropout(torch.ones(50, device=device), 0.3)
        torch.manual_seed(4)
        values += [torch.randperm(9, device=device), torch.bernoulli(torch.full((20,), 0.5, device=device)), dropped]
        return [value.tolist() for value in values]

    assert run("remote") == run("cpu") == run("remote")


def test_the_first_draw_has_the_seed_of_the_process(remote: Remote) -> None:
    generator = torch.Generator().manual_seed(torch.initial_seed())
    assert torch.randn(4, device="remote").tolist() == torch.randn(4, generator=generator).tolist()


def test_draws_there_leave_the_generator_here_alone(remote: Remote) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for _ in range(3):
        torch.randn(4, device="remote").sum().item()
    assert torch.equal(torch.get_rng_state(), before)
