"""Streaming for a plain ``nn.Module``: its weights are views of the ring, and hooks say which block is needed.

A block has one address for ever, so the views are made once; running a layer costs an event or two.
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

    ``prefetch``, ``poison`` and ``fence_filter`` are those of ``StreamingLoop``; the last one is for tests.
    """

    weights: Path | None = None
    image: HostImageOptions | None = None
    registrar: Registrar | None = None
    prefetch: bool = True
    poison: bool = False
    fence_filter: FenceFilter = all_fences


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedModule:
    """A module whose weights stream: call it as usual, without gradients."""

    module: nn.Module
    loop: StreamingLoop
    image: HostImage
    cursor: VisitCursor

    @property
    def counters(self) -> LoopCounters:
        """Passes, copies, bytes and waits so far."""
        return self.loop.counters

    @property
    def skipped_copies(self) -> int:
        """Copies that nobody read; more than a few mean that the ring was planned for another order of layers."""
        return self.cursor.skipped


@contextmanager
def stream_module(
    module: nn.Module, ring: Ring, graph: Graph, device: MemoryDevice, options: StreamOptions | None = None
) -> Iterator[StreamedModule]:
    """While inside, the weights of ``ring`` are on the host, and on ``device`` while they are needed.

    ``graph`` is what the ring was planned from: it names the buffers. Tensors that the ring does not hold move to the
    device. Afterwards every parameter and buffer of the module is what it was, with the latest values of those that
    moved. Errors: ``INVALID_CONFIG`` where ring, module, weights or a call do not fit, ``DEVICE_MEMORY``.
    """
    with ExitStack() as stack:
        with torch.inference_mode(mode=False):
            streamed = _start_streaming(stack, module, ring, graph, device, options or StreamOptions())
        yield streamed


def _start_streaming(  # noqa: PLR0913, PLR0917 - as above
    stack: ExitStack, module: nn.Module, ring: Ring, graph: Graph, device: MemoryDevice, options: StreamOptions
) -> StreamedModule:
    """Sets everything up until the stack unwinds, which it does in the reverse order: hooks, views, loop, image."""
    tensors = named_tensors(module)
    buffers = streamed_buffers(ring, graph, tensors)
    sources, registrar = _sources(buffers, tensors, options.weights), options.registrar or device.registrar
    image = HostImage(ring, sources, options.image or HostImageOptions(node=device.node), registrar)
    stack.callback(image.close)
    loop = StreamingLoop(
        device,
        ring,
        image,
        prefetch=options.prefetch,
        poison=options.poison,
        declare=device.has_observers,
        fence_filter=options.fence_filter,
    )
    stack.callback(loop.close)
    cursor = VisitCursor(loop)
    names = [[buffer.name for buffer in buffers if buffer.block == block] for block in range(len(ring.blocks))]
    stack.enter_context(place_tensors(module, tensors, buffers, device.memory(loop.arena), device.device))
    stack.enter_context(ModuleHooks(module, cursor, anchors(module, ring, names)).install())
    return StreamedModule(module=module, loop=loop, image=image, cursor=cursor)


def _sources(
    buffers: list[StreamedBuffer], tensors: Mapping[str, torch.Tensor], path: Path | None
) -> dict[int, Source]:
    """By buffer, the source of its bytes: the files, or the module for what they do not have."""
    stored = {} if path is None else stored_tensors(path)
    sources: dict[int, Source] = {}
    for buffer in buffers:
        name, size = buffer.name, buffer.size
        alias = next((alias for alias in buffer.aliases if alias in stored), None)
        if alias is not None:
            sources[buffer.buffer] = file_source(stored[alias], size, tensors[alias])
        elif tensors[name].device.type != "meta":
            sources[buffer.buffer] = tensor_source(name, tensors[name], size)
        else:
            reason = f"{path} has no {name}" if path else f"{name} has no value"
            raise InvalidConfig(reason, fix="give the files of this very model", name=name)
    return sources
