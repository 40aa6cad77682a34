"""GPT-2 small, 124M parameters, written with plain torch.nn: nothing in this file knows of tmmu.

tmmu plan examples/gpt2.py                                # one forward pass over 1024 tokens
tmmu plan examples/gpt2.py --set batch=8 --mode backward  # a training step
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone uses


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        q, k, v = (part.view(batch, seq, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT2(nn.Module):
    def __init__(self, *, layers: int, width: int, heads: int, vocab: int, seq: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def model(layers: int = 12, width: int = 768, heads: int = 12, vocab: int = 50257, seq: int = 1024) -> GPT2:
    """The module: 124,439,808 parameters at the defaults, the token embedding shared with the head."""
    return GPT2(layers=layers, width=width, heads=heads, vocab=vocab, seq=seq)


def inputs(batch: int = 1, seq: int = 1024, vocab: int = 50257) -> tuple[Tensor]:
    """One batch of token ids, int64[batch, seq]."""
    return (torch.randint(vocab, (batch, seq)),)


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean cross-entropy of predicting each token from those before it."""
    logits = model(ids)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
