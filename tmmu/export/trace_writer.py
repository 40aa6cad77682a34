"""A writer of traces for Perfetto: tracks, slices and counters.

Protobuf messages of perfetto/trace/perfetto_trace.proto, fields in order of their numbers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tmmu.export.protobuf import U64_LIMIT, bytes_field, double_field, text_field, uint_field

_SEQUENCE: Final = 1
_SLICE_BEGIN, _SLICE_END, _COUNTER = 1, 2, 4
_BYTES_UNIT: Final = 3
_EXPLICIT_ORDER: Final = 3
_I64_LIMIT: Final = 1 << 63

_PACKET: Final = 1
_STAMP, _SEQUENCE_ID, _EVENT, _FLAGS, _DESCRIPTOR = 8, 10, 11, 13, 60
_UUID, _TRACK_NAME, _PARENT, _COUNTER_UNIT, _ORDERING, _RANK = 1, 2, 5, 8, 11, 12
_ARGUMENT, _TYPE, _TRACK, _NAME, _VALUE, _DOUBLE_VALUE = 4, 9, 11, 23, 30, 44
_ARGUMENT_NAME, _UINT, _TEXT, _POINTER = 10, 3, 6, 7


@dataclass(slots=True, eq=False)
class TraceWriter:
    """Packets of a trace whose times are in units of ``unit_ns``.

    ``events`` are (time, order at that time, event), sorted when the trace is written.
    """

    unit_ns: int
    descriptors: list[bytes] = field(default_factory=list)
    events: list[tuple[int, int, bytes]] = field(default_factory=list)

    def track(self, name: str, *, parent: int = 0, counts_bytes: bool = False) -> int:
        """A new track below ``parent``, in the order of their making; its id."""
        uuid = len(self.descriptors) + 1
        parts = [uint_field(_UUID, uuid), text_field(_TRACK_NAME, name)]
        if parent:
            parts.append(uint_field(_PARENT, parent))
        if counts_bytes:
            parts.append(bytes_field(_COUNTER_UNIT, uint_field(3, _BYTES_UNIT)))
        if not parent:
            parts.append(uint_field(_ORDERING, _EXPLICIT_ORDER))
        parts.append(uint_field(_RANK, uuid))
        self.descriptors.append(b"".join(parts))
        return uuid

    def slice(self, track: int, name: str, span: tuple[int, int], arguments: Iterable[bytes]) -> None:
        """A slice over ``[birth, death)``. At one time, slices end before others begin, and an empty one ends last."""
        birth, death = span
        begin = [*arguments, uint_field(_TYPE, _SLICE_BEGIN), uint_field(_TRACK, track), text_field(_NAME, name)]
        self.events.append((birth, 1, b"".join(begin)))
        end = uint_field(_TYPE, _SLICE_END) + uint_field(_TRACK, track)
        self.events.append((death, 0 if death > birth else 2, end))

    def count(self, track: int, position: int, size: int) -> None:
        """The counter has this value from here on; as a double where a signed number is too small."""
        value = uint_field(_VALUE, size) if size < _I64_LIMIT else double_field(_DOUBLE_VALUE, float(size))
        self.events.append((position, 1, uint_field(_TYPE, _COUNTER) + uint_field(_TRACK, track) + value))

    def encode(self) -> bytes:
        """The bytes of the trace: tracks, then events by time."""
        sequence = uint_field(_SEQUENCE_ID, _SEQUENCE)
        packets = [bytes_field(_PACKET, sequence + bytes_field(_DESCRIPTOR, body)) for body in self.descriptors]
        if packets:
            first = sequence + uint_field(_FLAGS, 1) + bytes_field(_DESCRIPTOR, self.descriptors[0])
            packets[0] = bytes_field(_PACKET, first)
        for position, _, event in sorted(self.events, key=lambda event: event[:2]):
            stamp = uint_field(_STAMP, position * self.unit_ns)
            packets.append(bytes_field(_PACKET, stamp + sequence + bytes_field(_EVENT, event)))
        return b"".join(packets)


def uint_argument(name: str, number: int) -> bytes:
    """A number beside a slice; as text where it has more than 64 bits."""
    if number >= U64_LIMIT:
        return text_argument(name, str(number))
    return bytes_field(_ARGUMENT, uint_field(_UINT, number) + text_field(_ARGUMENT_NAME, name))


def text_argument(name: str, text: str) -> bytes:
    """A text beside a slice."""
    return bytes_field(_ARGUMENT, text_field(_TEXT, text) + text_field(_ARGUMENT_NAME, name))


def pointer_argument(name: str, address: int) -> bytes:
    """An address beside a slice, which the viewer shows in hexadecimal digits."""
    return bytes_field(_ARGUMENT, uint_field(_POINTER, address) + text_field(_ARGUMENT_NAME, name))
