"""A service for tests: it adds, streams, sleeps and fails as it is told."""

from threading import Event
from typing import Annotated, Literal

import msgspec

from tmmu.errors import SegmentFull
from tmmu.wire.interface import Message, Payloads, Peer, RequestHeader, ServiceCall, WireHeader


class Total(WireHeader, frozen=True):
    value: int
    client: str = ""


class Add(RequestHeader, frozen=True, tag="sums.add"):
    answer = Total
    part = Total
    numbers: Annotated[tuple[int, ...], msgspec.Meta(max_length=8)] = ()
    returns: bool = False
    """Whether the payloads come back."""
    streams: bool = False
    times: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    """How often they do in the answer."""


class Misbehave(RequestHeader, frozen=True, tag="sums.misbehave"):
    answer = Total
    way: Literal["sleep", "linger", "refuse", "overflow", "fail", "exit", "lie"]


class Sums:
    requests = (Add, Misbehave)

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.cancelled = Event()
        self.asleep = Event()
        self.may_end = Event()
        self.over = Event()

    def answer(self, header: RequestHeader, payloads: Payloads, call: ServiceCall) -> Message:
        if isinstance(header, Misbehave):
            return self._misbehave(header, call)
        assert isinstance(header, Add)
        total = 0
        for number in header.numbers:
            total += number
            if header.streams:
                call.send_part(Total(value=total), payloads if header.returns else ())
        total += sum(payload.nbytes for payload in payloads)
        return Total(value=total, client=call.peer.client), tuple(payloads) * header.times if header.returns else ()

    def _misbehave(self, header: Misbehave, call: ServiceCall) -> Message:
        if header.way == "sleep":
            woken = Event()
            call.on_cancel(woken.set)
            self.asleep.set()
            assert woken.wait(60)
            assert call.is_cancelled
            self.cancelled.set()
            call.send_part(Total(value=0))
        if header.way == "linger":  # as a step that is not taken back
            self.asleep.set()
            assert self.may_end.wait(60)
            return Total(value=0), ()
        if header.way == "refuse":
            raise SegmentFull("no room", fix="ask for less", bytes=7, names=["a", None, True])
        if header.way == "overflow":
            raise SegmentFull("no room", fix="ask for less", bytes=1 << 64)
        if header.way == "exit":  # as what a step ends of, which another thread runs
            raise SystemExit(1)
        if header.way == "fail":
            raise ZeroDivisionError("a defect")
        return header, ()

    def connection_lost(self, peer: Peer) -> None:
        self.lost.append(peer.connection)
        self.over.set()
