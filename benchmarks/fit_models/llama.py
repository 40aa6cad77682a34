"""A Llama in bf16, written out: rotary embedding, grouped keys, gated MLP; LoRA beside frozen layers where asked for.

The defaults are Llama 3.1 8B. Values and keys are repeated for their heads before a fused attention.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone uses

ROPE_BASE = 500_000.0


class RmsNorm(nn.Module):
    """In float32, like the published one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class Adapted(nn.Module):
    """A frozen layer and a product of two small ones."""

    def __init__(self, inside: int, outside: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside, bias=False).requires_grad_(requires_grad=False)
        self.shrink, self.grow = nn.Linear(inside, rank, bias=False), nn.Linear(rank, outside, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.grow(self.shrink(x)) * 2.0


def layer(inside: int, outside: int, rank: int) -> nn.Module:
    return Adapted(inside, outside, rank) if rank else nn.Linear(inside, outside, bias=False)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Groups of heads share their keys and values."""

    def __init__(self, width: int, heads: int, groups: int, head: int, rank: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, head
        self.q, self.k = layer(width, heads * head, rank), layer(width, groups * head, rank)
        self.v, self.out = layer(width, groups * head, rank), layer(heads * head, width, rank)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q = self.q(x).view(batch, tokens, self.heads, self.head).transpose(1, 2)
        k = self.k(x).view(batch, tokens, self.groups, self.head).transpose(1, 2)
        v = self.v(x).view(batch, tokens, self.groups, self.head).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, self.repeated(k), self.repeated(v), is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))

    def repeated(self, x: Tensor) -> Tensor:
        batch, _, tokens, _ = x.shape
        times = self.heads // self.groups
        wide = x[:, :, None].expand(batch, self.groups, times, tokens, self.head)
        return wide.reshape(batch, self.heads, tokens, self.head)


class Gated(nn.Module):
    """The MLP."""

    def __init__(self, width: int, inside: int, rank: int) -> None:
        super().__init__()
        self.gate, self.up = layer(width, inside, rank), layer(width, inside, rank)
        self.down = layer(inside, width, rank)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and the MLP, each after a norm and beside a residual."""

    def __init__(self, width: int, inside: int, heads: int, groups: int, head: int, rank: int) -> None:  # noqa: PLR0913, PLR0917 - sizes
        super().__init__()
        self.norm_1, self.norm_2 = RmsNorm(width), RmsNorm(width)
        self.attention, self.mlp = Attention(width, heads, groups, head, rank), Gated(width, inside, rank)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x), cos, sin)
        return x + self.mlp(self.norm_2(x))


class Llama(nn.Module):
    """Logits of all tokens. With a rank, what is not an adapter is frozen."""

    def __init__(  # noqa: PLR0913 - sizes
        self, *, layers: int, width: int, inside: int, heads: int, groups: int, head: int, vocab: int, rank: int
    ) -> None:
        super().__init__()
        self.head_width = head
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, inside, heads, groups, head, rank) for _ in range(layers))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocab, bias=False)
        if rank:
            frozen = (m for m in self.modules() if isinstance(m, RmsNorm | nn.Embedding) or m is self.head)
            for module in frozen:
                module.requires_grad_(requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        even = torch.arange(0, self.head_width, 2, device=ids.device).float()
        places = torch.arange(ids.shape[1], device=ids.device).float()
        angles = torch.outer(places, 1.0 / ROPE_BASE ** (even / self.head_width))
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def model(  # noqa: PLR0913, PLR0917 - sizes
    layers: int = 32,
    width: int = 4096,
    inside: int = 14336,
    heads: int = 32,
    groups: int = 8,
    head: int = 128,
    vocab: int = 128256,
    rank: int = 0,
) -> Llama:
    torch.set_default_dtype(torch.bfloat16)
    try:
        return Llama(
            layers=layers,
            width=width,
            inside=inside,
            heads=heads,
            groups=groups,
            head=head,
            vocab=vocab,
            rank=rank,
        )
    finally:
        torch.set_default_dtype(torch.float32)


def inputs(batch: int = 1, seq: int = 2048, vocab: int = 128256) -> tuple[Tensor]:
    return (torch.randint(vocab, (batch, seq)),)


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids).float()
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
