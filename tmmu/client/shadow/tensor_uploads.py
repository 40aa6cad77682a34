"""Uploads of bytes by hash: what the server has does not travel, and what arrived does not travel again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tmmu.errors import WireBroken
from tmmu.wire.interface import Message, Payloads, RequestHeader
from tmmu.wire.limits import WireLimits
from tmmu.wire.upload_messages import MOST_UPLOADS, FindUploads, PutUploads, TensorContents, UploadPart

PART_BYTES: Final = 8 << 20
"""Of one request: as much as travels again where it is interrupted."""
_MOST_VAIN: Final = 8
"""Requests one after the other that bring nothing, as where two clients send the same."""


class UploadChannel(Protocol):
    """What sends requests."""

    def request(self, header: RequestHeader, payloads: Payloads = (), *, deadline: float | None = None) -> Message:
        """As ``Connection.request``."""


@dataclass(slots=True)
class UploadCounts:
    """Bytes. ``total``: of all tensors, equal ones once; ``there``: of these on the server now; ``found``: before;
    ``sent``: that travelled, some twice where a part was interrupted.
    """

    total: int = 0
    there: int = 0
    found: int = 0
    sent: int = 0


class TensorUploads:
    """One upload of several tensors, ``payloads`` by hash. ``counts`` grows while ``send`` runs."""

    def __init__(self, payloads: Mapping[bytes, memoryview], counts: UploadCounts) -> None:
        self._payloads, self.counts = payloads, counts
        self._received = dict.fromkeys(payloads, 0)
        counts.total = sum(map(len, payloads.values()))

    def send(
        self,
        channel: UploadChannel,
        limits: WireLimits,
        *,
        deadline: float | None = None,
        must_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Sends what is missing, part by part; whether all of it is there then. ``deadline``: seconds of each request.

        Errors of the connection pass: another ``send`` goes on where the server's bytes end. ``WIRE_BROKEN`` where the
        bytes changed since they were hashed.
        """
        self._find(channel, deadline)
        self.counts.found = self.counts.there
        vain = 0
        while not must_stop():
            parts = list(self._next_parts(limits))
            if not parts:
                return True
            before = self.counts.there
            payloads = [payload for _, payload in parts]
            self.counts.sent += sum(map(len, payloads))
            header = PutUploads(parts=tuple(part for part, _ in parts))
            self._note([part.contents.hash for part, _ in parts], channel.request(header, payloads, deadline=deadline))
            vain = 0 if self.counts.there > before else vain + 1
            if vain > _MOST_VAIN:
                raise WireBroken("the server does not take what is uploaded", fix="try again")
        return False

    def _find(self, channel: UploadChannel, deadline: float | None) -> None:
        names = tuple(self._payloads)
        for begin in range(0, len(names), MOST_UPLOADS):
            some = names[begin : begin + MOST_UPLOADS]
            header = FindUploads(tensors=tuple(TensorContents(name, len(self._payloads[name])) for name in some))
            self._note(some, channel.request(header, deadline=deadline))

    def _note(self, names: Sequence[bytes], answer: Message) -> None:
        received: tuple[int, ...] = answer[0].received  # type: ignore[attr-defined] # the requests name the class
        if len(received) != len(names):
            raise WireBroken(f"the server answers for {len(received)} of {len(names)} tensors", fix="connect again")
        for name, count in zip(names, received, strict=True):
            if not 0 <= count <= len(self._payloads[name]):
                raise WireBroken("the server has more of a tensor than there is", fix="connect again")
            self._received[name] = count
        self.counts.there = sum(self._received.values())

    def _next_parts(self, limits: WireLimits) -> Iterator[tuple[UploadPart, memoryview]]:
        """What one request takes."""
        room, number = min(PART_BYTES, limits.payload_bytes), min(MOST_UPLOADS, limits.payloads)
        for name, payload in self._payloads.items():
            begin = self._received[name]
            if begin == len(payload):
                continue
            part = payload[begin : begin + room]
            yield UploadPart(TensorContents(name, len(payload)), begin), part
            room, number = room - len(part), number - 1
            if not (room and number):
                return
