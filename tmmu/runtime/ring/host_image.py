"""The host's image of the weights: every block where the ring says, in one mapping of just that size.

It is filled by several threads, each of which touches its pages first, and registered in segments afterwards, so that a
GPU reads it by itself. Where registering is refused it stays ordinary memory: the copies are right, and slower.
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
"""Bytes that one thread reads at a time: enough that threads do not wait for each other, small enough to share out."""
WORKERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HostImageOptions:
    """How an image is made. ``budget`` bounds its bytes, 0 by what the host has free; ``node`` is where the GPU is."""

    budget: int = 0
    workers: int = WORKERS
    segment: int = SEGMENT
    node: int = -1


class HostImage:
    """All blocks of a ring, read once. ``pinning`` says whether a GPU can read them by itself, and if not, why."""

    def __init__(
        self,
        ring: Ring,
        sources: Mapping[int, Source],
        filling: HostImageOptions | None = None,
        registrar: Registrar | None = None,
    ) -> None:
        """``sources`` by buffer. Errors: ``DEVICE_MEMORY`` beyond the budget, ``INVALID_CONFIG`` for a bad source."""
        rules = filling or HostImageOptions()
        self.ring, self.size = ring, ring.model_bytes
        _require_room(self.size, rules.budget)
        reads = _reads(ring, sources)
        self._memory = _mapping(self.size)
        self._cuts = _cuts(self.size, _whole_pages(rules.segment))
        _fill(self._memory, reads, rules)
        self._registrar = registrar
        self.pinning = self._pinned(registrar)

    def bytes(self, block: int) -> torch.Tensor:
        """``uint8[bytes]`` of a block."""
        begin = self.ring.host_offsets[block]
        return self._memory[begin : begin + self.ring.blocks[block].bytes]

    def pieces(self, block: int) -> Sequence[tuple[int, torch.Tensor | None, int]]:
        """The block in runs that lie in one registered segment each; nearly always one."""
        begin = self.ring.host_offsets[block]
        end = begin + self.ring.blocks[block].bytes
        inside = self._cuts if self.pinning.pinned_bytes else ()
        cuts = [begin, *(cut for cut in inside if begin < cut < end), end]
        return [(low - begin, self._memory[low:high], high - low) for low, high in pairwise(cuts)]

    def close(self) -> None:
        """The memory is ordinary again, and gone when nobody has a view of it. Closing twice is closing."""
        if self._registrar is not None:
            unpin(self.pinning.segments, self._registrar)
            self._registrar = None

    def _pinned(self, registrar: Registrar | None) -> Pinning:
        if registrar is None or not self.size:
            return Pinning(size=self.size, pinned_bytes=0, segments=(), refusal="no GPU is to read it")
        found = pin(self._memory.data_ptr(), self._cuts, registrar)
        if found.refusal:
            warnings.warn(
                f"the {self.size} bytes of weights are not pinned ({found.refusal}): every copy makes the host wait; "
                "raise the limit of locked memory (ulimit -l), or free host memory",
                PinningRefused,
                stacklevel=3,
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """``size`` bytes of ``source`` from ``skip`` on, to byte ``at`` of the image."""

    source: Source
    skip: int
    at: int
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


def _reads(ring: Ring, sources: Mapping[int, Source]) -> list[_Read]:
    """What is read where, in chunks; every member of every block has its source, and lies inside."""
    reads: list[_Read] = []
    for block, start in zip(ring.blocks, ring.host_offsets, strict=True):
        end = 0
        for member in sorted(block.members, key=lambda one: (one.offset, one.buffer)):
            source = sources.get(member.buffer)
            if source is None:
                raise InvalidConfig(
                    f"no weight is given for buffer {member.buffer} of {block.name}", fix="give every weight its value"
                )
            if member.offset < end or member.offset + source.size > block.bytes:
                what = f"buffer {member.buffer} of {block.name} does not fit at byte {member.offset}"
                raise InvalidConfig(what, fix="plan the ring for this very model", buffer=member.buffer)
            end = member.offset + source.size
            step = CHUNK if source.is_divisible else source.size or 1
            reads += [
                _Read(source=source, skip=skip, at=start + member.offset + skip, size=min(step, source.size - skip))
                for skip in range(0, source.size, step)
            ]
    return reads


def _mapping(size: int) -> torch.Tensor:
    """``uint8[size]`` of zeros that no page backs yet."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _whole_pages(size: int) -> int:
    return max(mmap.PAGESIZE, size // mmap.PAGESIZE * mmap.PAGESIZE)


def _cuts(size: int, segment: int) -> list[int]:
    return [*range(0, size, segment), size]


def _fill(memory: torch.Tensor, reads: Sequence[_Read], rules: HostImageOptions) -> None:
    """Every read is done; the first error is raised, and what was not begun is left."""
    nodes, number = node_cpus(), count()

    def settle() -> None:
        bind_thread(first_touch_cpus(next(number), nodes, rules.node))

    def read(one: _Read) -> None:
        one.source.read(memory[one.at : one.at + one.size], one.skip)

    with ThreadPoolExecutor(max(1, rules.workers), thread_name_prefix="tmmu fill", initializer=settle) as pool:
        jobs = [pool.submit(read, one) for one in reads]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
