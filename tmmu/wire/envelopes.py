"""Messages as bytes: an envelope with the header in it, and payloads in the same frame where they are small."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from tmmu import errors
from tmmu.errors import Field, InternalError, InvalidRequest, RequestTooLarge, TmmuError
from tmmu.wire.frames import broken
from tmmu.wire.limits import ENVELOPE_LENGTH, INLINE_BYTES, MOST_SECONDS, Whole, WireLimits
from tmmu.wire.stages import SERVER_STAGES

ENCODER: Final = msgspec.msgpack.Encoder()
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=int(MOST_SECONDS * 1000))]
TraceText = Annotated[str, msgspec.Meta(max_length=128)]
StageTimes = Annotated[tuple[Whole, ...], msgspec.Meta(max_length=len(SERVER_STAGES))]


class RequestEnvelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Around the header of a request."""

    sizes: tuple[Whole, ...]
    deadline: Milliseconds
    trace: TraceText
    header: msgspec.Raw


class AnswerEnvelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Around the header of a part or an answer."""

    sizes: tuple[Whole, ...]
    header: msgspec.Raw
    stages: StageTimes = ()
    """Microseconds of the server's stages; of an answer to a request with a trace."""


class FailureRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An error as it travels."""

    code: Annotated[str, msgspec.Meta(max_length=64)]
    what: Annotated[str, msgspec.Meta(max_length=4096)]
    fix: Annotated[str, msgspec.Meta(max_length=4096)]
    fields: dict[str, Any]


REQUEST: Final = msgspec.msgpack.Decoder(RequestEnvelope)
ANSWER: Final = msgspec.msgpack.Decoder(AnswerEnvelope)
FAILURE: Final = msgspec.msgpack.Decoder(FailureRecord)
CLASSES: Final[Mapping[str, type[TmmuError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, TmmuError) and "code" in vars(kind)
}
"""Errors by their codes."""
_OWN: Final = frozenset({"self", "message", "fix"})
"""Arguments of an error that are no fields."""


def encode_request(
    header: msgspec.Struct, payloads: Sequence[memoryview], *, seconds: float, trace: str = ""
) -> list[bytes | memoryview]:
    """The body of ``REQUEST``: the envelope, and payloads where they are small."""
    milliseconds = min(max(int(seconds * 1000), 0), int(MOST_SECONDS * 1000))
    return _with_payloads(ENCODER.encode(([len(each) for each in payloads], milliseconds, trace, header)), payloads)


def encode_answer(
    header: msgspec.Struct, payloads: Sequence[memoryview], stages: Sequence[int] = ()
) -> list[bytes | memoryview]:
    """The body of ``PART`` or ``ANSWER``; ``stages``: microseconds of each, where the client wants them."""
    sizes = [len(each) for each in payloads]
    return _with_payloads(ENCODER.encode((sizes, header, stages) if stages else (sizes, header)), payloads)


def encode_failure(error: TmmuError) -> bytes:
    """The body of ``FAILURE``."""
    return ENCODER.encode((error.code, error.what[:1000], error.fix[:1000], dict(error.fields)))


def decode_failure(data: bytes | memoryview) -> TmmuError:
    """The error that a server sent, of its own class; ``INTERNAL`` for a code that this version has not."""
    record: FailureRecord = decode_header(FAILURE, data)
    fields: dict[str, Field] = record.fields
    kind = CLASSES.get(record.code)
    if kind is None:
        return InternalError(f"{record.code}: {record.what}", fix=record.fix)
    return kind(record.what, fix=record.fix, **{name: value for name, value in fields.items() if name not in _OWN})


def decode_body(
    decoder: "msgspec.msgpack.Decoder[Any]", body: memoryview, limits: WireLimits
) -> tuple[Any, memoryview]:
    """The envelope of a message, and the bytes behind it. ``WIRE_BROKEN`` for a body that is none."""
    size = int.from_bytes(body[:ENVELOPE_LENGTH], "little")
    end = ENVELOPE_LENGTH + size
    if len(body) < end or size > limits.header_bytes:
        raise broken("an envelope that is not whole")
    try:
        envelope = decode_header(decoder, body[ENVELOPE_LENGTH:end])
    except InvalidRequest as error:
        raise broken("an envelope that is none") from error
    inline = body[end:]
    total = sum(envelope.sizes)
    if len(inline) != (total if total <= INLINE_BYTES else 0):
        raise broken(f"{len(inline)} bytes behind an envelope")
    return envelope, inline


def require_sizes(sizes: Sequence[int], limits: WireLimits) -> None:
    """``REQUEST_TOO_LARGE`` for more payloads, or more bytes of them, than one message may have."""
    if len(sizes) > limits.payloads or sum(sizes) > limits.payload_bytes:
        raise RequestTooLarge(
            f"{len(sizes)} payloads of {sum(sizes)} bytes: {limits.payloads} of {limits.payload_bytes} are the most",
            fix="send less at once",
            payloads=limits.payloads,
            payload_bytes=limits.payload_bytes,
        )


def decode_header(decoder: "msgspec.msgpack.Decoder[Any]", data: bytes | memoryview) -> Any:
    """A value of the decoder's type; ``INVALID_REQUEST`` for anything else, however deep."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise InvalidRequest(
            f"a header that is none: {' '.join(str(error).split())[:200]}", fix="use a client of this version"
        ) from error


def _with_payloads(envelope: bytes, payloads: Sequence[memoryview]) -> list[bytes | memoryview]:
    size = len(envelope).to_bytes(ENVELOPE_LENGTH, "little")
    if not payloads:
        return [size + envelope]
    if sum(map(len, payloads)) > INLINE_BYTES:
        return [size + envelope]
    return [b"".join((size, envelope, *payloads))]
