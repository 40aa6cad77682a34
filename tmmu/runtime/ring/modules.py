"""Streaming for a plain ``nn.Module``: its weights are windows on the ring, and hooks tell the loop what is needed.

A block has one address for ever, so the windows are made once; running a layer costs an event or two and no view.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from tmmu.errors import InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.ir.ring import Ring
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.device.pinning import Registrar
from tmmu.runtime.ring.anchors import anchors
from tmmu.runtime.ring.fences import Stands, always
from tmmu.runtime.ring.host_image import Filling, HostImage
from tmmu.runtime.ring.loop import Counts, Loop
from tmmu.runtime.ring.hooks import Passes
from tmmu.runtime.ring.cursor import Walk
from tmmu.runtime.ring.module_tensors import Window, named_tensors, placed, windows_of
from tmmu.runtime.weights.safetensors_files import stored_tensors
from tmmu.runtime.weights.sources import Source, file_source, tensor_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How weights stream. ``weights``: a safetensors file or folder to read them from, instead of the module's own.

    ``prefetch``, ``poison`` and ``stands`` are those of the loop; the last one is for tests.
    """

    weights: Path | None = None
    filling: Filling | None = None
    registrar: Registrar | None = None
    prefetch: bool = True
    poison: bool = False
    stands: Stands = always


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """A module whose weights stream: call it as ever, without gradients."""

    module: nn.Module
    loop: Loop
    image: HostImage
    walk: Walk

    @property
    def counts(self) -> Counts:
        """Passes, copies, bytes and waits so far."""
        return self.loop.counts

    @property
    def skipped(self) -> int:
        """Copies that nobody read: more than a few mean that the schedule was made for another order of layers."""
        return self.walk.skipped


@contextmanager
def stream_module(
    module: nn.Module, ring: Ring, graph: Graph, device: MemoryDevice, options: Options | None = None
) -> Iterator[Streaming]:
    """While inside, every weight of ``ring`` is on the host, and on ``device`` at its address while it is needed.

    ``graph`` is what the ring was planned from: it names the buffers. What the ring does not hold is moved to the
    device. Afterwards every parameter and buffer of the module is what it was, with the latest values of those that
    moved. Errors: ``INVALID_CONFIG`` where ring, module, weights or a call do not fit, ``DEVICE_MEMORY``.
    """
    with ExitStack() as stack:
        with torch.inference_mode(mode=False):
            found = _streaming(stack, module, ring, graph, device, options or Options())
        yield found


def _streaming(  # noqa: PLR0913, PLR0917 - as above
    stack: ExitStack, module: nn.Module, ring: Ring, graph: Graph, device: MemoryDevice, how: Options
) -> Streaming:
    """Everything is in place, until the stack unwinds."""
    tensors = named_tensors(module)
    windows = windows_of(ring, graph, tensors)
    filling = how.filling or Filling(node=device.node)
    image = HostImage(ring, _sources(windows, tensors, how.weights), filling, how.registrar or device.registrar)
    stack.callback(image.close)
    loop = Loop(
        device,
        ring,
        image,
        prefetch=how.prefetch,
        poison=how.poison,
        declare=device.watched,
        stands=how.stands,
    )
    stack.callback(loop.close)
    walk = Walk(loop)
    names = [[window.name for window in windows if window.block == block] for block in range(len(ring.blocks))]
    stack.enter_context(placed(module, tensors, windows, device.memory(loop.arena), device.device))
    stack.enter_context(Passes(module, walk, anchors(module, ring, names)).hooked())
    return Streaming(module=module, loop=loop, image=image, walk=walk)


def _sources(windows: list[Window], tensors: Mapping[str, torch.Tensor], path: Path | None) -> dict[int, Source]:
    """By buffer, where its bytes come from: the files, and for what they do not have the module."""
    stored = {} if path is None else stored_tensors(path)
    found: dict[int, Source] = {}
    for one in windows:
        alias = next((name for name in one.aliases if name in stored), None)
        if alias is not None:
            found[one.buffer] = file_source(stored[alias], one.size, tensors[alias])
        elif tensors[one.name].device.type != "meta":
            found[one.buffer] = tensor_source(one.name, tensors[one.name], one.size)
        else:
            where = f"{path} has no {one.name}" if path else f"{one.name} has no value"
            raise InvalidConfig(where, fix="give the files of this very model", name=one.name)
    return found
