"""A stack of Megatron's transformer layers over ranks of tensor parallelism, with and without sequence parallelism.

`tmmu plan benchmarks/rank_models/gpt.py --mode forward --world 8 --set layers=2 --set sizes=22B`. Weights and
activations are bfloat16; attention is not fused, and dropout is where Megatron has it.
"""

import math
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

SEQUENCE: Final = 2048
SIZES: Final = {"22B": (6144, 64, 4), "175B": (12288, 96, 1), "tiny": (256, 8, 2)}
"""Width, heads, sequences at once."""


class Layer(nn.Module):
    """Attention and a part of four times the width, each after a norm and before dropout and a sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.keys, self.values = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gathered = nn.ModuleList(nn.Identity() for _ in range(2))
        self.out_dropout, self.feed_dropout = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """``bfloat16[batch, sequence, width]``; ``hidden: bool[sequence, sequence]``, what is not looked at."""
        y = self.gathered[0](self.attention_norm(x))
        parts = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in
                 (self.queries(y), self.keys(y), self.values(y)))  # fmt: skip
        queries, keys, values = parts
        scores = (queries @ keys.transpose(2, 3) / math.sqrt(self.size)).masked_fill(hidden, -1e4)
        chances = functional.dropout(scores.softmax(-1), 0.1, self.training)
        x = x + self.out_dropout(self.out((chances @ values).transpose(1, 2).flatten(2)))
        y = self.gathered[1](self.feed_norm(x))
        return x + self.feed_dropout(self.down(functional.gelu(self.up(y))))


class Layers(nn.Module):
    """Layers one after another."""

    hidden: Tensor

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.register_buffer("hidden", torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """``bfloat16[batch, sequence, width]``, or a rank's part of the sequence."""
        for layer in self.layers:
            x = layer(x, self.hidden)
        return x


def model(*, sizes: str = "22B", layers: int = 2, ranks: int = 8, sequences_cut: bool = False) -> nn.Module:
    """The layers of the rank that this process is; ``sequences_cut``: sequence parallelism, as in ``inputs``."""
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (ranks,))
    width, heads, _ = SIZES[sizes]
    net = Layers(layers, width, heads).bfloat16()
    part = Shard(1) if sequences_cut else Replicate()
    for layer in net.layers:
        gathered = PrepareModuleInput(input_layouts=(part,), desired_input_layouts=(Replicate(),))
        columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=part)
        parallelize_module(layer, mesh, {
            "gathered.0": gathered, "queries": columns, "keys": columns, "values": columns, "out": rows,
            "gathered.1": gathered, "up": columns, "down": rows,
        })  # fmt: skip
    return net


def inputs(*, sizes: str = "22B", ranks: int = 8, sequences_cut: bool = False) -> Tensor:
    """What the layer before gives to a rank, ``bfloat16[batch, sequence, width]``."""
    width, _, sequences = SIZES[sizes]
    length = SEQUENCE // ranks if sequences_cut else SEQUENCE
    return torch.zeros((sequences, length, width), dtype=torch.bfloat16)


def loss(net: nn.Module, x: Tensor) -> Tensor:
    """A number, for which nothing is kept."""
    return net(x).sum()
