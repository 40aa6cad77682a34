"""Llama 3 as torchtitan shards it: FSDP2 of each block, alone or of tensor-parallel blocks, and a step of training.

Weights, gradients and AdamW's states are float32 shards; blocks compute in bfloat16 and reduce in float32.
``recompute`` is ``full``, a block keeps its input, or ``selective``, it keeps attention and every second matrix product
too.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

VOCABULARY = 128256
POSITIONS = 8192
KEY_HEADS = 8
SIZES = {"8B": (32, 4096, 32, 14336), "70B": (80, 8192, 64, 28672), "tiny": (2, 256, 16, 512)}
"""Layers, width, heads, width of the feed-forward part."""
KEPT = {
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


class Norm(nn.Module):
    """RMS norm, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """``dtype[..., width]``."""
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rotate(x: Tensor, phases: Tensor) -> Tensor:
    """Neighbouring numbers as complex ones, turned by their positions; ``dtype[batch, sequence, heads, size]``."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * phases[None, :, None]).flatten(3).type_as(x)


class Attention(nn.Module):
    """Causal attention with 8 heads of keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, KEY_HEADS * self.size, bias=False)
        self.values = nn.Linear(width, KEY_HEADS * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, phases: Tensor) -> Tensor:
        """``dtype[batch, sequence, width]``; a rank of columns has its own heads."""
        queries, keys, values = self.queries(x), self.keys(x), self.values(x)
        queries, keys, values = (part.unflatten(-1, (-1, self.size)) for part in (queries, keys, values))
        queries, keys = rotate(queries, phases), rotate(keys, phases)
        times = queries.shape[2] // keys.shape[2]
        keys, values = (part.repeat_interleave(times, 2) for part in (keys, values))
        parts = (part.transpose(1, 2) for part in (queries, keys, values))
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().flatten(2))


class FeedForward(nn.Module):
    """A gated feed-forward part."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``dtype[batch, sequence, width]``."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = Norm(width), Attention(width, heads)
        self.feed_norm, self.feed = Norm(width), FeedForward(width, hidden)

    def forward(self, x: Tensor, phases: Tensor) -> Tensor:
        """``dtype[batch, sequence, width]``."""
        x = x + self.attention(self.attention_norm(x), phases)
        return x + self.feed(self.feed_norm(x))


class Llama(nn.Module):
    """Tokens to logits."""

    phases: Tensor

    def __init__(self, layers: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        size = width // heads
        turns = torch.outer(torch.arange(POSITIONS), 500000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("phases", torch.polar(torch.ones_like(turns), turns), persistent=False)
        self.layers = nn.ModuleList(Block(width, heads, hidden) for _ in range(layers))
        self.norm = Norm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """``int64[batch, sequence]`` to ``dtype[batch, sequence, vocabulary]``."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.phases[: tokens.shape[1]])
        return self.head(self.norm(x))


def keep_every_second_product() -> Any:
    """What a block keeps of its forward pass, and what it computes again."""
    products = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        kept = operator in KEPT
        if operator is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def recomputed(block: nn.Module, recompute: str) -> nn.Module:
    """The block as ``recompute`` says."""
    if recompute == "full":
        return checkpoint_wrapper(block, preserve_rng_state=False)
    context: Callable[[], Any] = keep_every_second_product
    return checkpoint_wrapper(block, context_fn=context, preserve_rng_state=False)


def parallelize(net: Llama, mesh: DeviceMesh) -> None:
    """Columns and rows of each block, and sequences between them; logits are cut along the vocabulary."""
    sequence, whole = Shard(1), Replicate()
    parallelize_module(net, mesh, {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=sequence),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=sequence, output_layouts=Shard(-1), use_local_output=False),
    })  # fmt: skip
    for layer in net.layers:
        parallelize_module(layer, mesh, {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(sequence, None), desired_input_layouts=(whole, None)
            ),
            "attention.queries": ColwiseParallel(), "attention.keys": ColwiseParallel(),
            "attention.values": ColwiseParallel(), "attention.out": RowwiseParallel(output_layouts=sequence),
            "feed_norm": SequenceParallel(),
            "feed": PrepareModuleInput(input_layouts=(sequence,), desired_input_layouts=(whole,)),
            "feed.gate": ColwiseParallel(), "feed.up": ColwiseParallel(),
            "feed.down": RowwiseParallel(output_layouts=sequence),
        })  # fmt: skip


def model(*, size: str = "8B", data: int = 8, columns: int = 1, recompute: str = "selective") -> nn.Module:
    """The model of the rank that this process is, of ``data`` ranks times ``columns``."""
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (data, columns), mesh_dim_names=("data", "columns"))
    net = Llama(*SIZES[size])
    if columns > 1:
        parallelize(net, mesh["columns"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    last = len(net.layers) - 1
    for index, layer in enumerate(net.layers):
        block = recomputed(layer, recompute)
        net.layers[index] = fully_shard(block, mesh=mesh["data"], mp_policy=policy, reshard_after_forward=index != last)
    return fully_shard(net, mesh=mesh["data"], mp_policy=policy)


def inputs(*, sequences: int = 2) -> Tensor:
    """Tokens of a rank, ``int64[sequences, 8192]``."""
    return torch.zeros((sequences, POSITIONS), dtype=torch.int64)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW in its foreach form."""
    return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)


def train(net: nn.Module, updates: torch.optim.Optimizer, tokens: Tensor, *, columns: int = 1) -> None:
    """A step on ``int64[sequences, 8192]``, whose labels take no memory of their own."""
    updates.zero_grad()
    with loss_parallel() if columns > 1 else nullcontext():
        logits = net(tokens)
        error = functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        del logits
        error.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
    updates.step()
