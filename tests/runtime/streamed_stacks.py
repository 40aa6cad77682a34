"""Stacks of layers that stream through a ring by hand, on threads that two oracles watch."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tests.runtime.harness import randomize
from tests.runtime.streamed import ring_by_hand
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.device.threads import Jitter, ThreadsDevice
from tmmu.runtime.ring.modules import StreamedModule, StreamOptions, stream_module

WIDTH, LAYERS = 16, 6

PARTS = [f"layers.{n}" for n in range(LAYERS)]

X = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Stack(nn.Module):
    """Layers in a list, run in any order."""

    def __init__(self, layer: Callable[[], nn.Module] = Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, order: Any = range(LAYERS), fail: Any = None) -> torch.Tensor:
        for n in order:
            if fail is not None and n == fail[0]:
                raise fail[1]
            x = self.layers[n](x)
        return x


@contextmanager
def stream_checked(
    module: nn.Module, parts: list[str] = PARTS, *, slots: int = 2, resident: Any = (), **options: Any
) -> Iterator[StreamedModule]:
    """The module streamed through slots on threads with jitter, without gradients; both oracles find nothing."""
    ring, graph = ring_by_hand(module, parts, slots=slots, resident=resident)
    tags, recording = TagChecker(), CommandRecorder()
    device = ThreadsDevice((tags, recording), jitter=Jitter(seed=3, max_seconds=0.0005))
    try:
        stream_options = StreamOptions(**{"poison": True, **options})
        with stream_module(module, ring, graph, device, stream_options) as stream, torch.no_grad():
            yield stream
    finally:
        device.close()
    assert not tags.mismatches, tags.mismatches[0]
    assert not races(recording.log)


def stack(layer: Callable[[], nn.Module] = Layer) -> tuple[nn.Module, nn.Module]:
    """A module with random weights, and a resident copy of it."""
    module = randomize(Stack(layer)).eval()
    return module, copy.deepcopy(module)


def output_of(module: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = module(*args, **kwargs)
    return result
