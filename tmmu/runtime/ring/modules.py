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
from tmmu.runtime.ring.cursor import VisitCursor
from tmmu.runtime.ring.fences import FenceFilter, all_fences
from tmmu.runtime.ring.hooks import ModuleHooks
from tmmu.runtime.ring.host_image import HostImage, HostImageOptions
from tmmu.runtime.ring.loop import LoopCounters, StreamingLoop
from tmmu.runtime.ring.module_tensors import StreamedBuffer, named_tensors, place_tensors, streamed_buffers
from tmmu.runtime.weights.safetensors_files import stored_tensors
from tmmu.runtime.weights.sources import Source, file_source, tensor_source


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How weights stream. ``weights``: a safetensors file or folder to read them from, instead of the module's own.

    ``prefetch``, ``poison`` and ``stands`` are those of the loop; the last one is for tests.
    """

    weights: Path | None = None
    image: HostImageOptions | None = None
    registrar: Registrar | None = None
    prefetch: bool = True
    poison: bool = False
    fence_filter: FenceFilter = all_fences


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedModule:
    """A module whose weights stream: call it as ever, without gradients."""

    module: nn.Module
    loop: StreamingLoop
    image: HostImage
    cursor: VisitCursor

    @property
    def counters(self) -> LoopCounters:
        """Passes, copies, bytes and waits so far."""
        return self.loop.counters

    @property
    def skipped(self) -> int:
        """Copies that nobody read: more than a few mean that the schedule was made for another order of layers."""
        return self.cursor.skipped


@contextmanager
def stream_module(
    module: nn.Module, ring: Ring, graph: Graph, device: MemoryDevice, options: StreamOptions | None = None
) -> Iterator[StreamedModule]:
    """While inside, every weight of ``ring`` is on the host, and on ``device`` at its address while it is needed.

    ``graph`` is what the ring was planned from: it names the buffers. What the ring does not hold is moved to the
    device. Afterwards every parameter and buffer of the module is what it was, with the latest values of those that
    moved. Errors: ``INVALID_CONFIG`` where ring, module, weights or a call do not fit, ``DEVICE_MEMORY``.
    """
    with ExitStack() as stack:
        with torch.inference_mode(mode=False):
            found = _streaming(stack, module, ring, graph, device, options or StreamOptions())
        yield found


def _streaming(  # noqa: PLR0913, PLR0917 - as above
    stack: ExitStack, module: nn.Module, ring: Ring, graph: Graph, device: MemoryDevice, how: StreamOptions
) -> StreamedModule:
    """Everything is in place, until the stack unwinds."""
    tensors = named_tensors(module)
    windows = streamed_buffers(ring, graph, tensors)
    filling = how.image or HostImageOptions(node=device.node)
    image = HostImage(ring, _sources(windows, tensors, how.weights), filling, how.registrar or device.registrar)
    stack.callback(image.close)
    loop = StreamingLoop(
        device,
        ring,
        image,
        prefetch=how.prefetch,
        poison=how.poison,
        declare=device.has_observers,
        fence_filter=how.fence_filter,
    )
    stack.callback(loop.close)
    walk = VisitCursor(loop)
    names = [[window.name for window in windows if window.block == block] for block in range(len(ring.blocks))]
    stack.enter_context(place_tensors(module, tensors, windows, device.memory(loop.arena), device.device))
    stack.enter_context(ModuleHooks(module, walk, anchors(module, ring, names)).install())
    return StreamedModule(module=module, loop=loop, image=image, cursor=walk)


def _sources(
    windows: list[StreamedBuffer], tensors: Mapping[str, torch.Tensor], path: Path | None
) -> dict[int, Source]:
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
