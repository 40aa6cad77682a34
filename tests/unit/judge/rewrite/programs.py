"""Captured steps for rewrites: what real models make, small."""

from functools import cache

import torch
from torch import nn

import tmmu
from tmmu.ir.graph import Graph


class Block(nn.Module):
    """A norm, two layers, dropout, a view that is written in place, and a loss."""

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
        return (x + self.down(wide)).square().mean()


class Draws(nn.Module):
    """Two masks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = nn.functional.dropout(x, 0.5, training=True)
        return first + nn.functional.dropout(x, 0.25, training=True)


@cache
def step(name: str) -> Graph:
    """A training step with an optimizer, or two draws; planned for a CPU."""
    x = torch.zeros(4, 8)
    if name == "draws":
        return tmmu.plan(Draws(), x, device="cpu").graph
    return tmmu.plan(Block(), x, loss="sum", optimizer=name, device="cpu").graph
