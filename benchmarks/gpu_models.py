"""Models for the GPU check, of torch alone: a language model, to train as it is or checkpointed; decoding; vision."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Attention over all earlier positions, and a feed-forward layer, each behind a norm."""

    def __init__(self, width: int, heads: int, *, gated: bool) -> None:
        super().__init__()
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.heads, self.gated = heads, gated
        self.before, self.after = norm(width), norm(width)
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width * (2 if gated else 1)), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, *, causal: bool) -> torch.Tensor:
        b, n, w = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.inward(self.before(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.outward(attended.transpose(1, 2).reshape(b, n, w))
        return x + self.down(self._activate(self.up(self.after(x))))

    def _activate(self, x: torch.Tensor) -> torch.Tensor:
        if not self.gated:
            return functional.gelu(x, approximate="tanh")
        gate, value = x.chunk(2, -1)
        return functional.silu(gate) * value


class Language(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, width: int = 512, layers: int = 8, heads: int = 8, *, gated: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(8192, width), nn.Embedding(2048, width)
        self.blocks = nn.ModuleList(Block(width, heads, gated=gated) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 8192, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x, causal=True)
        return self.head(self.norm(x))


class Gated(Language):
    """``Language`` with gated activations and RMS norms, in bfloat16."""

    def __init__(self, width: int = 512, layers: int = 8) -> None:
        super().__init__(width=width, layers=layers, gated=True)
        self.to(torch.bfloat16)


class Recomputed(Language):
    """``Language`` with dropout, each block checkpointed: its recomputation must restore the random state."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(self._run_dropped, block, x, use_reentrant=False)
        return self.head(self.norm(x))

    def _run_dropped(self, block: Block, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(block(x, causal=True), 0.1, training=self.training)


class Decode(nn.Module):
    """One token against a key-value cache in buffers, updated in place."""

    def __init__(self, width: int = 512, layers: int = 8, heads: int = 8, length: int = 512) -> None:
        super().__init__()
        self.inner = Language(width=width, layers=layers, heads=heads)
        size = width // heads
        for layer in range(layers):
            self.register_buffer(f"keys{layer}", torch.zeros(1, heads, length, size))
            self.register_buffer(f"values{layer}", torch.zeros(1, heads, length, size))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.inner.tokens(ids) + self.inner.positions(self.position)
        for layer, block in enumerate(self.inner.blocks):
            x = self._block(x, block, getattr(self, f"keys{layer}"), getattr(self, f"values{layer}"))
        self.position.add_(1).remainder_(self.keys0.shape[2])
        return self.inner.head(self.inner.norm(x))

    def _block(self, x: torch.Tensor, block: Block, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        heads = [t.view(1, 1, block.heads, -1).transpose(1, 2) for t in block.inward(block.before(x)).chunk(3, -1)]
        keys.index_copy_(2, self.position, heads[1])
        values.index_copy_(2, self.position, heads[2])
        visible = torch.arange(keys.shape[2], device=x.device) <= self.position
        attended = functional.scaled_dot_product_attention(heads[0], keys, values, attn_mask=visible.view(1, 1, 1, -1))
        x = x + block.outward(attended.transpose(1, 2).reshape(x.shape))
        return x + block.down(block._activate(block.up(block.after(x))))


class Vision(nn.Module):
    """A vision transformer: patches of an image in, logits of classes out."""

    def __init__(self, width: int = 384, layers: int = 6, heads: int = 6, patch: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.ModuleList(Block(width, heads, gated=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, causal=False)
        return self.head(self.norm(x).mean(1))


def loss(model: nn.Module, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
    """A scalar on which every output has an effect."""
    return model(*inputs, **named).float().logsumexp(-1).mean()
