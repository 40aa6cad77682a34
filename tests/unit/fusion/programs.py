"""Small programs whose ops are fused: captured on fakes, with inputs for them."""

from typing import Any

import torch
from torch import nn

from tests.runtime.harness import capture_program
from tmmu.fusion.regions import Region, RegionFinder
from tmmu.ir.program import Program

Tensors = dict[str, torch.Tensor]


class Net(nn.Module):
    """A residual block over rows, with a norm and a softmax."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.down(nn.functional.gelu(self.up(x), approximate="tanh"))
        return torch.softmax(self.norm(y) * 0.5, -1)


class Cache(nn.Module):
    """A decoding step: one row against a cache that it writes."""

    def __init__(self, width: int = 16, heads: int = 2, length: int = 8) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        shape = (1, heads, length, width // heads)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))
        self.register_buffer("places", torch.arange(length))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(1, 1, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        keys, values = self.keys.index_copy_(2, at, k), self.values.index_copy_(2, at, v)
        mask = (self.places <= at).view(1, 1, 1, -1)
        y = nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return x + self.out(y.transpose(1, 2).reshape(1, -1))


def net_inputs(rows: int = 4, width: int = 16) -> Tensors:
    return {"x": torch.randn(rows, width)}


def cache_inputs(width: int = 16) -> Tensors:
    return {"x": torch.randn(1, width), "at": torch.tensor([3])}


def program_of(make: Any, inputs: Tensors, **options: Any) -> Program:
    return capture_program(make, inputs, **options)[0]


def find_regions(program: Program) -> tuple[Region, ...]:
    return RegionFinder(program).regions()
