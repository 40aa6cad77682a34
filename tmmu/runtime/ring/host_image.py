"""The host image: all blocks of a ring, one after another, in one anonymous mapping of just that size.

Block ``b`` is at ``ring.host_offsets[b]``, so one copy moves one block. Three steps, in this order:

1. map without backing (huge pages where the system has them);
2. fill by several threads in chunks: first touch puts a page on the thread's NUMA node, that of the GPU if known;
3. pin in segments, with the pages where they are by then. A copy must not span two segments, so a block across a
   boundary is moved in two pieces.

If pinning is refused the image stays pageable: the copies are right, and slower.
"""

import mmap
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Final

import torch

from tmmu.errors import DeviceMemory, InvalidConfig
from tmmu.ir.ring import Ring
from tmmu.runtime.device.numa import bind_thread, first_touch_cpus, node_cpus
from tmmu.runtime.device.pinning import SEGMENT, Pinning, PinningRefused, Registrar, pin, unpin
from tmmu.runtime.memory.sizing import device_memory
from tmmu.runtime.weights.sources import Source

CHUNK: Final = 16 << 20
"""Bytes that a thread reads at a time: large enough that reads dominate, small enough that no thread finishes late."""
WORKERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HostImageOptions:
    """``budget`` bounds the image's bytes (0: by free host memory); ``node`` is the GPU's NUMA node, -1 if unknown.

    ``workers`` threads fill it; ``segment`` bytes are pinned at once.
    """

    budget: int = 0
    workers: int = WORKERS
    segment: int = SEGMENT
    node: int = -1


class HostImage:
    """All blocks of a ring in host memory. ``pinning`` says whether it is pinned, and if not, why."""

    def __init__(
        self,
        ring: Ring,
        sources: Mapping[int, Source],
        options: HostImageOptions | None = None,
        registrar: Registrar | None = None,
    ) -> None:
        """Reads every source, by buffer, once.

        Errors: ``DEVICE_MEMORY`` beyond the budget, ``INVALID_CONFIG`` for a source that is missing or does not fit.
        """
        rules = options or HostImageOptions()
        self.ring, self.size = ring, ring.model_bytes
        _require_room(self.size, rules.budget)
        reads = _chunk_reads(ring, sources)
        self._memory = map_memory(self.size)
        self._segment_bounds = [*range(0, self.size, _whole_pages(rules.segment)), self.size]
        _fill(self._memory, reads, rules)
        self._registrar = registrar
        self.pinning = self._pin(registrar)

    def bytes(self, block: int) -> torch.Tensor:
        """``uint8[bytes]`` of a block."""
        begin = self.ring.host_offsets[block]
        return self._memory[begin : begin + self.ring.blocks[block].bytes]

    def pieces(self, block: int) -> Sequence[tuple[int, torch.Tensor | None, int]]:
        """The block in runs that lie in one pinned segment each; nearly always one run."""
        begin = self.ring.host_offsets[block]
        end = begin + self.ring.blocks[block].bytes
        cuts = self._segment_bounds if self.pinning.pinned_bytes else ()
        bounds = [begin, *(cut for cut in cuts if begin < cut < end), end]
        return [(low - begin, self._memory[low:high], high - low) for low, high in pairwise(bounds)]

    def close(self) -> None:
        """Unpins the memory; it is freed when the last view of it is gone. May be called twice."""
        if self._registrar is not None:
            unpin(self.pinning.segments, self._registrar)
            self._registrar = None

    def _pin(self, registrar: Registrar | None) -> Pinning:
        if registrar is None or not self.size:
            return Pinning(size=self.size, pinned_bytes=0, segments=(), refusal="no GPU is to read it")
        pinning = pin(self._memory.data_ptr(), self._segment_bounds, registrar)
        if pinning.refusal:
            warnings.warn(
                f"the {self.size} bytes of weights are not pinned ({pinning.refusal}): every copy makes the host wait; "
                "raise the limit of locked memory (ulimit -l), or free host memory",
                PinningRefused,
                stacklevel=3,
            )
        return pinning


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChunkRead:
    """``size`` bytes of ``source`` from ``skip`` on go to byte ``offset`` of the image."""

    source: Source
    skip: int
    offset: int
    size: int


def _require_room(size: int, budget: int) -> None:
    free, _ = device_memory(torch.device("cpu"))
    limit = budget or free
    if size > limit:
        raise DeviceMemory(
            f"the weights take {size} bytes of the host, and it may use {limit}",
            fix="raise the host's budget, or use a machine with more memory",
            bytes=size,
            free=free,
            budget=budget,
        )


def _chunk_reads(ring: Ring, sources: Mapping[int, Source]) -> list[_ChunkRead]:
    """All reads of all members; every member must have a source that fits its place in the block."""
    reads: list[_ChunkRead] = []
    for block, start in zip(ring.blocks, ring.host_offsets, strict=True):
        end = 0
        for member in sorted(block.members, key=lambda m: (m.offset, m.buffer)):
            source = sources.get(member.buffer)
            if source is None:
                raise InvalidConfig(
                    f"no weight is given for buffer {member.buffer} of {block.name}", fix="give every weight its value"
                )
            if member.offset < end or member.offset + source.size > block.bytes:
                reason = f"buffer {member.buffer} of {block.name} does not fit at byte {member.offset}"
                raise InvalidConfig(reason, fix="plan the ring for this very model", buffer=member.buffer)
            end = member.offset + source.size
            step = CHUNK if source.is_divisible else source.size or 1
            first = start + member.offset
            reads += [
                _ChunkRead(source=source, skip=skip, offset=first + skip, size=min(step, source.size - skip))
                for skip in range(0, source.size, step)
            ]
    return reads


def map_memory(size: int) -> torch.Tensor:
    """``uint8[size]`` of zeros that no page backs yet; ``DEVICE_MEMORY`` where the host does not have so many."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    try:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise DeviceMemory(
            f"the host has no {size} bytes of memory to give", fix="ask for less host memory", host=size
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _whole_pages(size: int) -> int:
    return max(mmap.PAGESIZE, size // mmap.PAGESIZE * mmap.PAGESIZE)


def _fill(memory: torch.Tensor, reads: Sequence[_ChunkRead], rules: HostImageOptions) -> None:
    """Does all reads; raises the first error, and then begins no other read."""
    nodes, worker = node_cpus(), count()

    def bind_worker() -> None:
        bind_thread(first_touch_cpus(next(worker), nodes, rules.node))

    def read(chunk: _ChunkRead) -> None:
        chunk.source.read(memory[chunk.offset : chunk.offset + chunk.size], chunk.skip)

    with ThreadPoolExecutor(max(1, rules.workers), thread_name_prefix="tmmu fill", initializer=bind_worker) as pool:
        jobs = [pool.submit(read, chunk) for chunk in reads]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
