"""Eight small architectures, each with its training step, captured once: what ``test_fit_steps.py`` fits and runs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone uses

import tmmu
from tests.runtime.harness import random_ids, randomize
from tmmu.ir.graph import Graph

WORDS, WIDTH, LENGTH = 61, 16, 12


class Attending(nn.Module):
    """Attention to a source and an MLP, with dropout, beside residuals."""

    def __init__(self, linear: Callable[[int, int], nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (linear(WIDTH, WIDTH) for _ in range(3))
        self.up, self.down = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, source: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        y = self.norm_1(x)
        source = y if source is None else source
        scores = self.q(y) @ self.k(source).transpose(-1, -2)
        scores = (scores if bias is None else scores + bias).softmax(-1)
        x = x + F.dropout(scores @ self.v(source), 0.1, training=True)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_2(x)))), 0.1, training=True)


class Words(nn.Module):
    """An embedding, blocks, a head and the loss of the next word."""

    def __init__(self, block: Callable[[], nn.Module] = Attending, blocks: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Adapted(nn.Module):
    """A frozen layer beside two small ones."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside, bias=False).requires_grad_(requires_grad=False)
        self.shrink, self.grow = nn.Linear(inside, 2, bias=False), nn.Linear(2, outside, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.grow(self.shrink(F.dropout(x, 0.1, training=True))) * 2.0


class Experts(nn.Module):
    """Four experts; the best two of each word, by their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 32), nn.SiLU(), nn.Linear(32, WIDTH)) for _ in "1234"
        )

    def forward(self, x: Tensor) -> Tensor:
        best, places = self.router(x).softmax(-1).topk(2)
        shares = torch.zeros_like(x[..., :4]).scatter(-1, places, best)
        return x + sum(shares[..., i, None] * expert(x) for i, expert in enumerate(self.experts))


class Seq2Seq(nn.Module):
    """An encoder, a decoder that looks at it, a bias that all layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(LENGTH, LENGTH))
        self.encoder = nn.ModuleList(Attending() for _ in range(2))
        self.decoder = nn.ModuleList(Attending() for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        source = x = self.words(ids)
        for block in self.encoder:
            source = block(source, None, self.bias)
        for block in self.decoder:
            x = block(x, source, self.bias)
        return F.cross_entropy((x @ self.words.weight.t()).flatten(0, 1), ids.flatten())


class Convolutions(nn.Module):
    """Convolutions, batch norms, activations in place, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.1))
            for i in (3, 8, 8, 8)
        )

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class DepthwiseBlock(nn.Module):
    """Of ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class Depthwise(nn.Module):
    """A stem and blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 8, 2, 2), nn.ModuleList(DepthwiseBlock() for _ in range(3))

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class Around(nn.Module):
    """Down, and up again beside what the way down left."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(i, 8, 3, 2, 1) for i in (3, 8))
        self.norms = nn.ModuleList(nn.GroupNorm(4, 8) for _ in "12")
        self.up = nn.ModuleList(nn.Conv2d(i, 8, 3, 1, 1) for i in (16, 11))

    def forward(self, images: Tensor) -> Tensor:
        x, left = images, []
        for conv, norm in zip(self.down, self.norms, strict=True):
            left.append(x)
            x = F.silu(norm(conv(x)))
        for conv in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = F.silu(conv(torch.cat((x, left.pop()), 1))) if x.shape[-1] > 8 else conv(torch.cat((x, left.pop()), 1))
        return F.dropout(x, 0.1, training=True).square().mean()


class Recurrent(nn.Module):
    """A cell that is called once for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(WORDS, WIDTH), nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x, states = self.words(ids), []
        state = torch.zeros_like(x[:, 0])
        for place in range(ids.shape[1]):
            state = self.cell(x[:, place], state)
            states.append(state)
        return F.cross_entropy(self.head(torch.stack(states[:-1], 1)).flatten(0, 1), ids[:, 1:].flatten())


def ids() -> dict[str, Tensor]:
    return {"ids": random_ids(3, LENGTH, high=WORDS)}


def images() -> dict[str, Tensor]:
    return {"images": torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(5))}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A module, its inputs, and tmmu's name of its optimizer."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    optimizer: str = "adamw:fused"


ARCHITECTURES = {
    "transformer": Architecture(Words, ids),
    "lora": Architecture(lambda: Words(lambda: Attending(Adapted)), ids),
    "experts": Architecture(lambda: Words(Experts), ids),
    "seq2seq": Architecture(Seq2Seq, ids),
    "convolutions": Architecture(Convolutions, images, "sgd"),
    "depthwise": Architecture(Depthwise, images),
    "around": Architecture(Around, images),
    "recurrent": Architecture(Recurrent, ids, "sgd"),
}
"""By name."""


def real_module(name: str) -> nn.Module:
    """The module with random weights, the same each time."""
    torch.manual_seed(1)
    return randomize(ARCHITECTURES[name].make()).train()


@cache
def training_step(name: str) -> Graph:
    """Of the architecture with its optimizer, planned for a CPU."""
    each = ARCHITECTURES[name]
    return tmmu.plan(real_module(name), each.inputs(), loss="sum", optimizer=each.optimizer, device="cpu").graph
