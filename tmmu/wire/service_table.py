"""Which service answers which class of request: one decoder for all of them."""

from collections.abc import Sequence
from typing import Any, Union

import msgspec

from tmmu.errors import InternalError
from tmmu.wire.envelopes import decode_header
from tmmu.wire.interface import Message, Payloads, Peer, RequestHeader, ServiceCall, WireService


class ServiceTable:
    """Services by the classes of their requests. ``INTERNAL`` where two of them have one tag."""

    def __init__(self, services: Sequence[WireService]) -> None:
        self.services = tuple(services)
        self._by_class = {kind: service for service in services for kind in service.requests}
        if len({_tag(kind) for kind in self._by_class}) < sum(len(service.requests) for service in services):
            raise InternalError("two services answer requests of one tag")
        union: Any = Union[tuple(self._by_class)]  # noqa: UP007 - of as many classes as there are
        self._decoder = msgspec.msgpack.Decoder(union)

    def decode(self, data: bytes | memoryview) -> RequestHeader:
        """The request of an encoded header; ``INVALID_REQUEST`` for anything that is none."""
        request: RequestHeader = decode_header(self._decoder, data)
        return request

    def answer(self, header: RequestHeader, payloads: Payloads, call: ServiceCall) -> Message:
        """What the service says; ``INTERNAL`` where that is not of the class that the request names."""
        answer, beside = self._by_class[type(header)].answer(header, payloads, call)
        if type(answer) is not header.answer:
            raise InternalError(f"{type(header).__name__} was answered by {type(answer).__name__}")
        return answer, beside

    def connection_lost(self, peer: Peer) -> None:
        """Tells every service."""
        for service in self.services:
            service.connection_lost(peer)


def _tag(kind: type[RequestHeader]) -> str:
    return str(kind.__struct_config__.tag)
