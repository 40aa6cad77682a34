"""Live bytes of a real run call by call, from what torch's allocator says of each alloc and free."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

BEFORE: Final = -1
"""The call that stands for all that comes before the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationEvent:
    """``bytes`` more at ``address``, or less where they are freed, ``inside`` call number ``call`` or after it.

    Inside call ``BEFORE`` is what comes before the run; after it, and before the first call, the run has begun.
    """

    call: int
    inside: bool
    bytes: int
    address: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMemory:
    """Bytes during each call, as it ends with its arguments and results held.

    ``before``: live when the run begins. ``called``: what calls made and is live, less what was there before the run
    and went after the first call began. ``beside``: what the run made outside of all calls. ``most``: of both, the most
    inside the call. ``between``: the most at any moment outside of calls.
    """

    before: int
    called: tuple[int, ...]
    beside: tuple[int, ...]
    most: tuple[int, ...]
    between: int


class _Levels:
    """What is live now, by where it was made. What nobody saw being made is none of the run's, nor is its end."""

    def __init__(self) -> None:
        self.before = self.called = self.beside = 0
        self.maker: dict[int, str] = {}
        self.size: dict[int, int] = {}

    def take(self, event: AllocationEvent) -> None:
        """Follow one event."""
        if event.bytes > 0:
            self.maker[event.address] = _maker(event)
            self.size[event.address] = event.bytes
        maker = self.maker.get(event.address)
        if event.bytes < 0:
            self.maker.pop(event.address, None)
            self.size.pop(event.address, None)
        if maker == "none":
            self.beside += event.bytes
        elif maker == "call" or (maker == "before" and event.call != BEFORE):
            self.called += event.bytes
        elif maker == "before" and event.inside:
            self.before += event.bytes

    def adopt(self, address: int) -> None:
        """What was made outside of calls is a call's from now on: a constant that is lifted."""
        if self.maker.get(address) == "none":
            self.maker[address] = "call"
            self.called += self.size[address]
            self.beside -= self.size[address]


def _maker(event: AllocationEvent) -> str:
    if not event.inside:
        return "none"
    return "before" if event.call == BEFORE else "call"


def observed_memory(
    events: Iterable[AllocationEvent], calls: int, lifted: Mapping[int, int] | None = None
) -> ObservedMemory:
    """The levels of ``calls`` calls, from their events in order; ``lifted``: by call, the address of its constant."""
    inside: list[list[AllocationEvent]] = [[] for _ in range(calls + 1)]  # the last of each is BEFORE's
    after: list[list[AllocationEvent]] = [[] for _ in range(calls + 1)]
    for event in events:
        (inside if event.inside else after)[event.call].append(event)
    levels = _Levels()
    _most(levels, inside[BEFORE])
    before = levels.before
    between = _most(levels, after[BEFORE])
    called, beside, most = list[int](), list[int](), list[int]()
    for call in range(calls):
        most.append(_most(levels, inside[call]))
        if lifted and call in lifted:
            levels.adopt(lifted[call])
        called.append(levels.called)
        beside.append(levels.beside)
        between = max(between, _most(levels, after[call]))
    return ObservedMemory(before=before, called=tuple(called), beside=tuple(beside), most=tuple(most), between=between)


def _most(levels: _Levels, events: Iterable[AllocationEvent]) -> int:
    """Follow the events; the most that is live on the way."""
    top = levels.called + levels.beside
    for event in events:
        levels.take(event)
        top = max(top, levels.called + levels.beside)
    return top
