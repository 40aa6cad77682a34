"""Captured steps for rewrites: what real models make, small."""

from functools import cache

import torch
from torch import nn

import tmmu
from tmmu.ir.graph import Graph


def masked(x: torch.Tensor, p: float) -> torch.Tensor:
    """Dropout that keeps the mask that it draws, as a GPU's does."""
    dropped: torch.Tensor = torch.ops.aten.native_dropout(x, p, True)[0]
    return dropped


class Masked(nn.Module):
    """The same as a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return masked(x, 0.5)


class Masks(nn.Module):
    """Two masks for one input, which is changed afterwards."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x * 2
        first, second = masked(wide, 0.5), masked(wide, 0.5)
        return wide.add_(1) + first + second


class Block(nn.Module):
    """A norm, two layers, dropout of both forms, a view that is written in place, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        wide = nn.functional.gelu(self.up(self.norm(x)))
        wide = nn.functional.dropout(wide, 0.5, training=True)
        wide = wide * 2
        wide[:, :4].mul_(3)
        return (x + masked(self.down(wide), 0.2)).square().mean()


class Convolutions(nn.Module):
    """Convolutions, batch norms, activations in place and dropout of both forms: what is saved is most of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for index, channels in enumerate((4, 8, 8, 8, 8)):
            layers = nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
            self.layers.append(nn.Sequential(*layers, Masked() if index % 2 else nn.Dropout(0.1)))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3))).square().mean()


class Deep(nn.Module):
    """Eight wide layers and a small batch: gradients are most of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x.square().mean()


class Projected(nn.Module):
    """Blocks of a norm and a convolution, each beside a projection of the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(2, 8) for _ in range(4))
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, 1, 1) for _ in range(4))
        self.projections = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, convolution, project in zip(self.norms, self.convolutions, self.projections, strict=True):
            x = convolution(nn.functional.silu(norm(x))) + project(x)
        return x.square().mean()


class Draws(nn.Module):
    """Two masks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = nn.functional.dropout(x, 0.5, training=True)
        return first + nn.functional.dropout(x, 0.25, training=True)


def clipped_step(batch: torch.Tensor) -> None:
    """A step that scales all gradients by their norm before it updates."""
    _OPTIMIZER.zero_grad()
    _DEEP(batch).backward()
    nn.utils.clip_grad_norm_(_DEEP.parameters(), 1.0)
    _OPTIMIZER.step()


_DEEP = Deep()
_OPTIMIZER = torch.optim.AdamW(_DEEP.parameters(), foreach=True)


@cache
def deep_step(optimizer: str) -> Graph:
    """A training step of eight layers; with ``clipped``, AdamW on lists after a clipping by norm."""
    x = torch.zeros(2, 64)
    if optimizer == "clipped":
        return tmmu.plan(clipped_step, x, device="cpu").graph
    return tmmu.plan(Deep(), x, loss="sum", optimizer=optimizer, device="cpu").graph


@cache
def convolutions(optimizer: str) -> Graph:
    """A training step of five convolutions."""
    return tmmu.plan(Convolutions(), torch.zeros(4, 4, 12, 12), loss="sum", optimizer=optimizer, device="cpu").graph


@cache
def projected() -> Graph:
    """A training step of four blocks with a projection."""
    return tmmu.plan(Projected(), torch.zeros(2, 8, 12, 12), loss="sum", optimizer="sgd", device="cpu").graph


@cache
def step(name: str) -> Graph:
    """A training step with an optimizer, two draws, or two masks; planned for a CPU."""
    x = torch.zeros(4, 8)
    if name == "draws":
        return tmmu.plan(Draws(), x, device="cpu").graph
    if name == "masks":
        return tmmu.plan(Masks(), x, device="cpu").graph
    return tmmu.plan(Block(), x, loss="sum", optimizer=name, device="cpu").graph
