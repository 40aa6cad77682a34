"""Training steps: recorded with their gradients, run as one, with local bits."""

import copy
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint

from tests.unit.client.device.conftest import Remote
from tmmu.client.device.registration import RemoteDevice
from tmmu.errors import UnsupportedOp


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.view(5, 1, 2, 4).transpose(1, 2) for part in self.into(x).split(8, -1))
        causal = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mask = torch.ones(1, 1, dtype=torch.bool, device=x.device)
        masked = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.2)
        return self.out((causal + masked).transpose(1, 2).reshape(5, 8).softmax(-1))


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "dense": lambda: (
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3)),
        torch.randn(5, 4),
    ),
    "convolutions": lambda: (
        nn.Sequential(
            *(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.AvgPool2d(2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
        ),
        torch.randn(5, 2, 9, 9),
    ),
    "attention": lambda: (Attending(), torch.randn(5, 8)),
    "embedding": lambda: (
        nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3), nn.Mish()),
        torch.arange(10).view(5, 2) % 9,
    ),
}  # fmt: skip


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("name", MODELS)
def test_steps_have_local_bits_and_run_as_one(remote: Remote, name: str, make: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    local, x = MODELS[name]()
    model, y = copy.deepcopy(local).to("remote"), torch.tensor([0, 1, 2, 0, 1])
    here = step_of(local, make(local.parameters(), lr=0.01))
    there = remote.device.step(step_of(model, make(model.parameters(), lr=0.01)))
    for turn in range(3):
        torch.manual_seed(turn)
        with torch.enable_grad():
            expected = here(x, y)
        torch.manual_seed(turn)
        before = remote.requests
        loss = there(x.to("remote"), y.to("remote"))
        assert remote.requests == before + 1
        assert torch.equal(loss.cpu(), expected)
        for (label, parameter), other in zip(local.named_parameters(), model.parameters(), strict=True):
            assert torch.equal(other.detach().cpu(), parameter.detach()), (turn, label)
    assert remote.session.bindings.why_unplanned() == ()
    if make is torch.optim.SGD:
        assert remote.device.counts.planned >= 1


def test_a_step_of_gpt2_has_local_bits(remote: Remote) -> None:
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=16)
    torch.manual_seed(0)
    local = transformers.GPT2LMHeadModel(config)
    model, ids = copy.deepcopy(local).to("remote"), torch.randint(3, 50, (2, 9))
    losses = []
    for one, device in ((local, "cpu"), (model, "remote")):
        optimizer = torch.optim.AdamW(one.parameters())

        def run(
            one: nn.Module = one, optimizer: torch.optim.Optimizer = optimizer, device: str = device
        ) -> torch.Tensor:
            loss = one(ids.to(device), labels=ids.to(device)).loss
            loss.backward()
            optimizer.step()
            return loss.detach()

        torch.manual_seed(1)
        with torch.enable_grad():
            losses.append((run if device == "cpu" else remote.device.step(run))())
    assert torch.equal(losses[1].cpu(), losses[0])
    assert model.lm_head.weight is model.transformer.wte.weight
    for (name, parameter), other in zip(local.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(other.detach().cpu(), parameter.detach()), name


def test_a_step_that_looks_at_a_value_is_refused_and_leaves_the_device_usable(remote: Remote) -> None:
    weight = nn.Parameter(torch.ones(2, device="remote"))

    def look() -> float:
        return (weight * 2).sum().item()

    with pytest.raises(UnsupportedOp, match="looks at a value"):
        remote.device.step(look)()
    assert weight.detach().tolist() == [1, 1]
    with torch.enable_grad(), pytest.raises(UnsupportedOp, match="outside of a step function"):
        weight * 2


def test_gradients_that_are_not_recorded_are_refused(remote: Remote) -> None:
    images = torch.ones(1, 1, 4, 4, device="remote", requires_grad=True)
    layer = nn.LSTM(2, 2).to("remote")

    def pool() -> None:
        functional.max_pool2d(images, 2).sum().backward()

    def fill() -> None:
        value = torch.ones((), device="remote", requires_grad=True)
        images.masked_fill(images > 0, value).sum().backward()

    for run in (pool, fill, lambda: images.prod().backward(), lambda: layer(torch.ones(1, 1, 2, device="remote"))):
        with pytest.raises(UnsupportedOp):
            remote.device.step(run)()


def test_gradients_are_accumulated_there(remote: Remote) -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0], device="remote"))

    def add(device: RemoteDevice = remote.device) -> None:
        (weight * weight).sum().backward()

    for _ in range(2):
        remote.device.step(add)()
    assert weight.grad is not None
    assert weight.grad.tolist() == [4, 8]


@pytest.mark.parametrize("reenters", [False, True])
def test_checkpoints_have_local_bits(remote: Remote, reenters: bool) -> None:
    start, gradients = torch.randn(3, 4), []
    for device in ("cpu", "remote"):
        weight = nn.Parameter(start.to(device))

        def step(weight: nn.Parameter = weight) -> None:
            checkpoint.checkpoint(lambda x: (x * x).sin().sum(), weight, use_reentrant=reenters).backward()

        with torch.enable_grad():
            (remote.device.step(step) if device == "remote" else step)()
        assert weight.grad is not None
        gradients.append(weight.grad.cpu())
    assert torch.equal(*gradients)


@pytest.mark.parametrize("reenters", [False, True])
def test_a_checkpoint_that_draws_is_refused_and_noise_on_gradients_is_not(remote: Remote, reenters: bool) -> None:
    weight = nn.Parameter(torch.ones(8, device="remote"))

    def step() -> None:
        block = lambda x: functional.dropout(x * x).sum()  # noqa: E731
        checkpoint.checkpoint(block, weight, use_reentrant=reenters).backward()

    with pytest.raises(UnsupportedOp, match="in a checkpoint"):
        remote.device.step(step)()
    weight.grad = None
    weight.register_hook(lambda gradient: gradient + torch.rand_like(gradient))
    torch.manual_seed(2)
    remote.device.step(lambda: (weight * 2).sum().backward())()
    torch.manual_seed(2)
    assert weight.grad is not None
    assert torch.equal(weight.grad.cpu(), 2 + torch.rand(8))


HOOKS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda gradient: gradient / gradient.norm().item(),
    "print": repr,
    "list": lambda gradient: gradient.tolist(),
    "branch": lambda gradient: gradient if gradient.norm() > 1 else None,
    "shapes": lambda gradient: gradient + torch.ones(7, device="remote"),
    "error": lambda gradient: {}["its own"],
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", HOOKS)
def test_what_a_hook_raises_the_step_raises_and_no_weight_is_changed(remote: Remote, name: str, after: bool) -> None:
    weight = nn.Parameter(torch.ones(3, device="remote"))
    optimizer = torch.optim.SGD([weight], lr=1)
    (weight.register_post_accumulate_grad_hook if after else weight.register_hook)(
        lambda tensor: HOOKS[name](tensor.grad if after else tensor)
    )

    def step() -> None:
        (weight * 2).sum().backward()
        optimizer.step()

    kind, text = {"shapes": (RuntimeError, "broadcast"), "error": (KeyError, "its own")}.get(
        name, (UnsupportedOp, "looks at a value")
    )
    with pytest.raises(kind, match=text):
        remote.device.step(step)()
    assert weight.detach().tolist() == [1, 1, 1]
