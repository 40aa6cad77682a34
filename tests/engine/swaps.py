"""Sessions of a few bytes without a model, swapped on a dry device or on threads, and what their bytes should be."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tmmu.engine.engine import Engine
from tmmu.engine.geometry import Geometry, StateLengths, StateTensor
from tmmu.engine.policies.swapper import SwapLimits
from tmmu.engine.policies.table import policy_named
from tmmu.engine.swap.fences import SwapFence, SwapFenceFilter, all_fences
from tmmu.engine.swap.host_tier import HostTier
from tmmu.engine.swap.link import SwapLink
from tmmu.engine.swap.swapping import SessionSwapping
from tmmu.runtime.device.interface import Device
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.memory.data import DataSegment
from tmmu.runtime.memory.slab import Slab

GROWING: Final = StateTensor(name="keys", dtype=torch.uint8, shape=(2,))
RECURRENT: Final = StateTensor(name="sums", dtype=torch.uint8, shape=(3,), grows=False)
BOTH: Final = Geometry(tensors=(GROWING, RECURRENT), longest=0, alignment=1)
CAPACITY: Final = StateLengths(4, 0)
ROOM: Final = BOTH.arena_bytes(CAPACITY)


class Time:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True, eq=False)
class Owner:
    """A session: ``steps`` that it has had are what its bytes depend on."""

    capability: str
    capacities: StateLengths = CAPACITY
    length: int = 0
    base: int = 0
    arena_bytes: int = ROOM
    steps: int = 0
    rank: int = 1

    @property
    def lengths(self) -> StateLengths:
        """It has no source."""
        return StateLengths(self.length, 0)


def without(*removed: SwapFence) -> SwapFenceFilter:
    """All fences but these."""
    return lambda fence: fence not in removed


@dataclass(slots=True)
class Swaps:
    """Swapping on a device: its sessions by name. On a dry device nothing lands before ``land``."""

    device: Device
    swapping: SessionSwapping
    link: SwapLink
    data: DataSegment
    host: HostTier
    time: Time
    slab: Slab | None = None
    owners: dict[str, Owner] = field(default_factory=dict)

    def open(self, name: str) -> Owner:
        """A session that rests."""
        owner = self.owners[name] = Owner(name)
        self.swapping.open(owner)
        self.swapping.rest(owner)
        return owner

    def run(self, name: str, *, rest: bool = True) -> None:
        """The session is needed and has a step, if it may run by then; ``rest``: after which it is not needed."""
        owner = self.owners[name]
        self.swapping.need(owner)
        self.step(name)
        if rest:
            self.swapping.rest(owner)

    def step(self, name: str) -> bool:
        """One more position of a needed session, or of one that is full the same again; whether it may run."""
        owner = self.owners[name]
        if self.swapping.refusal(owner) is not None or not self.swapping.may_run(owner):
            return False
        with self.swapping.step([owner]):
            self.check(owner)
            owner.length = min(owner.length + 1, CAPACITY.text)
            owner.steps += 1
            self.write(owner)
        return True

    def land(self, index: int = 0) -> None:
        """The host learns of a task of the link, as they were issued."""
        self.swapping.land(self.link.in_flight[index])

    def land_all(self) -> None:
        """The host learns of all tasks, and of those that are issued then."""
        while self.link.in_flight:
            self.land()

    def check(self, owner: Owner) -> None:
        """The bytes of a session are those that its own last step left."""
        if self.slab is not None and owner.length:
            expected = expected_bytes(owner)
            for (begin, _), row in zip(self._ranges(owner), expected, strict=True):
                assert self.slab.bytes(begin, len(row)).tolist() == row, owner.capability

    def write(self, owner: Owner) -> None:
        """What a step writes: the last position, and what recurs."""
        if self.slab is not None:
            for (begin, _), row in zip(self._ranges(owner), expected_bytes(owner), strict=True):
                self.slab.bytes(begin, len(row)).copy_(torch.tensor(row, dtype=torch.uint8))

    def _ranges(self, owner: Owner) -> list[tuple[int, int]]:
        offsets = BOTH.offsets(owner.capacities)
        return [(owner.base + offsets[tensor.name], tensor.bytes_for(owner.lengths)) for tensor in BOTH.tensors]


def expected_bytes(owner: Owner) -> list[list[int]]:
    """Per tensor the bytes that live: positions as they were written, and what recurs by the number of steps."""
    name = ord(owner.capability[0])
    keys = [(name * 7 + position * 3 + byte) % 256 for position in range(owner.length) for byte in range(2)]
    return [keys, [(name + owner.steps * 5 + byte) % 256 for byte in range(3)]]


def swaps_on(
    device: Device,
    *,
    rooms: int = 1,
    host: int = 100,
    policy: str = "lru",
    fences: SwapFenceFilter = all_fences,
    wake: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] | None = None,
    time_to_live: float = 60.0,
) -> Swaps:
    """Rooms for so many sessions, chunks of 4 bytes, two of them in flight. ``clock``: in place of the told one."""
    size = rooms * ROOM
    data, tier, time = DataSegment(size, alignment=1), HostTier(host), Time()
    slab = Slab(size, 1, torch.device("cpu")) if isinstance(device, MemoryDevice) else None
    if isinstance(device, MemoryDevice):
        assert slab is not None
        arenas = device.adopt(slab), device.adopt(tier.slab)
    else:
        arenas = device.allocate(size), device.allocate(host)
    link = SwapLink(device, BOTH, data=arenas[0], host=arenas[1], fence_filter=fences)
    ttl_ns = int(time_to_live * 10**9)
    limits = SwapLimits(device=size, host=host, chunk=4, in_flight=8, bytes_per_second=1000, time_to_live_ns=ttl_ns)
    swapping = SessionSwapping(
        policy_named(policy), limits, geometry=BOTH, data=data, host=tier, link=link, clock=clock or time, wake=wake
    )
    return Swaps(device, swapping, link, data, tier, time, slab)


def swapping_of(engine: Engine) -> SessionSwapping:
    """What moves the sessions of an engine that has a host tier."""
    assert isinstance(engine._arenas, SessionSwapping)
    return engine._arenas
