"""Small models that between them use views, mutation, tied weights, many outputs and random operators."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(x).split(width, 2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm2(x)))))


class Decoder(nn.Module):
    """A GPT with tied embeddings."""

    def __init__(self, layers: int = 2, width: int = 32, heads: int = 4, vocab: int = 50, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Convolutional(nn.Module):
    """Convolutions, batch statistics, in-place activations, pooling and a dead output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x = functional.relu(self.norm(self.conv1(pixels)), inplace=True)
        x = functional.max_pool2d(x, 2)
        x = x + torch.sigmoid(self.conv2(x))
        values, _ = x.flatten(2).max(-1)
        return self.head(values)


class Cached(nn.Module):
    """A key cache that is updated where it lies, one row a step."""

    def __init__(self, length: int = 8, width: int = 16) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys[3:4] = self.project(x)
        weights = torch.softmax(x @ self.keys.t(), -1)
        self.keys[0].mul_(2.0)
        return weights @ self.keys


class ViewsAndWrites(nn.Module):
    """Chunks, in-place writes through views, scatter, a list of outputs with a scalar and ``None``."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[object]:
        first, second = x.chunk(2, -1)
        out = torch.zeros(x.shape[0], 4)
        out[:, :2] = first.sum(-1, keepdim=True)
        out[:, 2:].add_(second.mean())
        z = torch.cat([first, second], -1)
        z[0].zero_()
        base = x.clone()
        alias = base.view(-1)
        base.tanh_()
        return [out, z * 2, alias + 1, None, 3, {"y": y, "view": y[1:], "index": x.argsort(-1)}]


class Recurrent(nn.Module):
    """An LSTM: on a CPU one operator of a library, where that is on."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]
