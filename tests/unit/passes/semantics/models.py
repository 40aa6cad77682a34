"""One tiny model of each kind that labels tell apart. No name of an argument or module says what it is."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tmmu.ir.graph import Graph
from tmmu.ir.program import Program
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import fake_environment, no_progress, trace
from tmmu.passes.capture.workload import Workload as Work
from tmmu.passes.pipeline import lower_program

VOCABULARY = 64
WIDTH = 32
HEADS = 4


class Mixer(nn.Module):
    """Multi-head attention of ``x`` to ``y``; ``composed`` of products and a softmax, or one operator."""

    def __init__(self, *, causal: bool = False, composed: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.causal, self.composed = causal, composed
        self.a, self.b, self.c, self.d = (nn.Linear(width, width) for _ in range(4))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(self.a(x)), self.heads(self.b(y)), self.heads(self.c(y))
        if self.composed:
            scores = q @ k.transpose(-1, -2) / 3.0
            if self.causal:
                n = scores.shape[-1]
                scores = scores.masked_fill(torch.ones(n, n).tril() == 0, float("-inf"))
            mixed = scores.softmax(-1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.d(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A transformer layer, with attention to ``y`` where ``cross``."""

    def __init__(self, *, causal: bool = False, cross: bool = False, composed: bool = False) -> None:
        super().__init__()
        self.e, self.f, self.g = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.m = Mixer(causal=causal, composed=composed)
        self.n = Mixer(composed=composed) if cross else None
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        h = self.e(x)
        x = x + self.m(h, h)
        if self.n is not None and y is not None:
            x = x + self.n(self.f(x), y)
        return x + self.down(functional.gelu(self.up(self.g(x))))


class Stack(nn.Module):
    """Layers over embedded ids; ends in a score per word where ``head``."""

    def __init__(self, layers: int = 2, *, head: bool = True, **options: bool) -> None:
        super().__init__()
        self.t = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(**options) for _ in range(layers))
        self.o = nn.Linear(WIDTH, VOCABULARY if head else 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        h = self.t(x)
        for layer in self.layers:
            h = layer(h, y)
        return self.o(h)


class Cached(nn.Module):
    """A decoder layer over keys and values that a session keeps; the new ones begin at ``place``."""

    def __init__(self, place: int, length: int = 16) -> None:
        super().__init__()
        self.place = place
        self.t, self.o = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("p", torch.zeros(1, HEADS, length, WIDTH // HEADS))
        self.register_buffer("q", torch.zeros(1, HEADS, length, WIDTH // HEADS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.t(x)
        q, k, v = (f(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.a, self.b, self.c))
        end = self.place + x.shape[1]
        self.p[:, :, self.place : end] = k
        self.q[:, :, self.place : end] = v
        places = torch.arange(self.p.shape[2])
        mask = places[None, :] <= torch.arange(self.place, end)[:, None]
        mixed = functional.scaled_dot_product_attention(q, self.p, self.q, attn_mask=mask)
        return self.o(h + mixed.transpose(1, 2).flatten(2))


class TextPair(nn.Module):
    """An encoder of text and a decoder that attends to it."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.j = Stack(head=False, composed=True), Stack(causal=True, cross=True, composed=True)
        self.k = nn.Linear(8, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.j(y, self.k(self.i(x)))


class Residual(nn.Module):
    """A residual block of convolutions and batch statistics that may halve the picture."""

    def __init__(self, inner: int, outer: int, step: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(inner, outer, 3, step, 1), nn.Conv2d(outer, outer, 3, 1, 1)
        self.c = nn.Conv2d(inner, outer, 1, step)
        self.e, self.f = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.e(self.a(x)))
        return functional.relu(self.f(self.b(h)) + self.c(x))


class Stages(nn.Module):
    """A residual network of a stem and three stages over one plane."""

    def __init__(self) -> None:
        super().__init__()
        self.s = nn.Conv2d(1, 8, 3, 2, 1)
        self.r = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2))
        self.o = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(self.r(self.s(x)).mean((2, 3)))


class Patches(nn.Module):
    """Patches of a picture by one convolution, then layers of attention."""

    def __init__(self, *, composed: bool = False) -> None:
        super().__init__()
        self.s = nn.Conv2d(3, WIDTH, 8, 8)
        self.layers = nn.ModuleList(Layer(composed=composed) for _ in range(2))
        self.o = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.s(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            h = layer(h)
        return self.o(h.mean(1))


class Sound(nn.Module):
    """Convolutions over time, layers of attention, and a decoder of words that attends to them."""

    def __init__(self) -> None:
        super().__init__()
        self.s, self.u = nn.Conv1d(20, WIDTH, 3, 1, 1), nn.Conv1d(WIDTH, WIDTH, 3, 2, 1)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.j = Stack(causal=True, cross=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = functional.gelu(self.u(functional.gelu(self.s(x)))).transpose(1, 2)
        for layer in self.layers:
            h = layer(h)
        return self.j(y, h)


class TwoTowers(nn.Module):
    """A picture and a causal text, each encoded alone, and the product of both."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.j = Patches(), Stack(head=False, causal=True)
        self.k = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.i(x) @ self.k(self.j(y)[:, -1]).t()


class PicturePrompt(nn.Module):
    """Patches of a picture before the embedded words of a causal decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.s = nn.Conv2d(3, WIDTH, 8, 8)
        self.first = Layer()
        self.t = nn.Embedding(VOCABULARY, WIDTH)
        self.second = Layer(causal=True)
        self.o = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.first(self.s(x).flatten(2).transpose(1, 2))
        return self.o(self.second(torch.cat([h, self.t(y)], 1)))


class Recurrent(nn.Module):
    """Words by a recurrent cell, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.t, self.o = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.r = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], WIDTH)
        rows = []
        for step in self.t(x).unbind(1):
            h = self.r(step, h)
            rows.append(self.o(h))
        return torch.stack(rows, 1)


class Library(nn.Module):
    """Words by the recurrent layer of a library."""

    def __init__(self) -> None:
        super().__init__()
        self.t, self.o = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.r = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(self.r(self.t(x))[0])


class Recommender(nn.Module):
    """Tables of sparse features beside dense ones, as click prediction has them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100, 8, mode="sum") for _ in range(3))
        self.a, self.b = nn.Linear(13, 8), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = [functional.relu(self.a(x)), *(t(y[i]) for i, t in enumerate(self.tables))]
        return torch.sigmoid(self.b(torch.cat(parts, 1)))


class UNet(nn.Module):
    """Convolutions down and up again with skips, and attention to a text at the bottom."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(4, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(16, WIDTH, 3, 2, 1)
        self.m = Mixer()
        self.d, self.e, self.f = nn.Conv2d(WIDTH + 16, 16, 3, 1, 1), nn.Conv2d(24, 8, 3, 1, 1), nn.Conv2d(8, 4, 3, 1, 1)
        self.t = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        one = functional.silu(self.a(x))
        two = functional.silu(self.b(one))
        low = functional.silu(self.c(two))
        rows = low.flatten(2).transpose(1, 2)
        low = low + self.m(rows, self.t(y)).transpose(1, 2).unflatten(2, low.shape[2:])
        up = functional.silu(self.d(torch.cat([functional.interpolate(low, scale_factor=2.0), two], 1)))
        up = functional.silu(self.e(torch.cat([functional.interpolate(up, scale_factor=2.0), one], 1)))
        return self.f(up)


class Generator(nn.Module):
    """Pictures from noise by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16 * 4 * 4)
        self.b, self.c = nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ConvTranspose2d(8, 3, 4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.a(x)).unflatten(1, (16, 4, 4))
        return torch.tanh(self.c(functional.relu(self.b(h))))


def ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def program_of_module(module: Callable[[], nn.Module], *args: torch.Tensor, device: str = "cpu") -> Program:
    """The program of a module in evaluation, made under the fakes, over fake arguments of these forms."""
    with torch.no_grad(), fake_environment(device):
        built = module().eval()
        fakes: tuple[Any, ...] = tuple(torch.empty(a.shape, dtype=a.dtype) for a in args)
        work = Work(name="model", folder="", run=built, module=built, args=fakes)
        return lower_program(trace(work, CaptureRequest(model="f", device=device), no_progress))


def training_graph(module: Callable[[], nn.Module], *args: torch.Tensor, device: str = "cpu") -> Graph:
    """The graph of a step, forward and backward, of a module whose result is the loss."""
    with fake_environment(device):
        built = module()
        fakes = tuple(torch.empty(a.shape, dtype=a.dtype) for a in args)
        work = Work(name="model", folder="", run=built, module=built, args=fakes)
        return lower_program(trace(work, CaptureRequest(model="f", device=device, mode="backward"), no_progress)).graph
