"""A call as bytes: operator with overload and every argument in schema order, without the tensors themselves.

Deterministic CBOR of ``[operator, [argument, ...], [result, ...]]``, and of a call under kernel switches that are not
torch's defaults a fourth item, ``[[name, value], ...]``. Tensors are places: the ids that stand in them are
a row beside the text, so that equal layers share one text. A result is ``true`` where it is a tensor. An argument is

    []                     None
    true, -3, "mean"       booleans, integers, texts as they are
    8 bytes                a float, IEEE 754 binary64, big-endian
    ["complex", re, im]    8 bytes each
    ["list", ...]          lists and tuples
    ["tensor", bits]       a place; 1 conjugated, 2 negated
    ["default"]            what the schema has
    ["number"]             a number input of the step, which no hash covers
    ["dtype" | "layout" | "memory_format" | "device", text]
    ["opaque", type]       an object that no file holds: the call cannot be made again from here
"""

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from tmmu.errors import PlanCorrupt
from tmmu.ir.encoding import cbor

TENSOR: Final = "tensor"
NUMBER: Final = "number"
DEFAULT: Final = "default"
LIST: Final = "list"
COMPLEX: Final = "complex"
OPAQUE: Final = "opaque"
NAMED: Final = ("dtype", "layout", "memory_format", "device")
MAX_DEPTH: Final = 16

Argument: TypeAlias = "bool | int | str | bytes | list[Argument]"
"""An argument as it stands in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallText:
    """What a text says; ``results``: of each result, whether it is a tensor; ``switches``: under which it runs."""

    operator: str
    arguments: tuple[Argument, ...]
    results: tuple[bool, ...]
    switches: "tuple[tuple[str, Argument], ...]" = ()

    @property
    def places(self) -> int:
        """How many tensors its arguments and results have."""
        return sum(tag_count(argument, TENSOR) for argument in self.arguments) + sum(self.results)

    @property
    def numbers(self) -> int:
        """How many number inputs its arguments have."""
        return sum(tag_count(argument, NUMBER) for argument in self.arguments)


def encode_call(call: CallText) -> bytes:
    """The bytes of a call."""
    parts = [call.operator, list(call.arguments), list(call.results)]
    return cbor.encode([*parts, [list(pair) for pair in call.switches]] if call.switches else parts)


def decode_call(data: bytes) -> CallText | None:
    """The call that these bytes are; ``None`` where they are none, or not canonical."""
    try:
        value = cbor.decode(data)
    except PlanCorrupt:
        return None
    match value:
        case [str(operator), list(arguments), list(results), *rest]:
            call = CallText(
                operator=operator,
                arguments=tuple(arguments),
                results=tuple(results),
                switches=_switches(rest),
            )
            return call if _is_call(call) and encode_call(call) == data else None
    return None


def _switches(rest: list[object]) -> tuple[tuple[str, Argument], ...]:
    """The pairs of the fourth item; of anything else a pair that no call has, so that the text is none."""
    pairs = rest[0] if len(rest) == 1 else rest
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return (("", []),)
    return tuple((pair[0], pair[1]) for pair in pairs)


def _is_call(call: CallText) -> bool:
    return (
        all(isinstance(result, bool) for result in call.results)
        and all(map(_is_argument, call.arguments))
        and all(isinstance(name, str) and name and _is_argument(value) for name, value in call.switches)
    )


def encode_float(number: float) -> bytes:
    """The 8 bytes of a float; one for every NaN would lose its sign, so they are kept as they are."""
    return struct.pack(">d", number)


def decode_float(data: bytes) -> float:
    """The float of 8 bytes."""
    return float(struct.unpack(">d", data)[0])


def encode_number(argument: Argument) -> bytes:
    """A number input by itself."""
    return cbor.encode(argument)


def decode_number(data: bytes) -> "Argument | None":
    """The number input that these bytes are; ``None`` where they are none, or are not canonical."""
    try:
        value = cbor.decode(data)
    except PlanCorrupt:
        return None
    is_number = isinstance(value, (bool, int, bytes)) or (isinstance(value, list) and value[:1] == [COMPLEX])
    return cast("Argument", value) if is_number and _is_argument(value) and cbor.encode(value) == data else None


def tag_count(argument: Argument, tag: str) -> int:
    """How often ``TENSOR`` or ``NUMBER`` stands in an argument: its places, its number inputs."""
    if not isinstance(argument, list) or not argument:
        return 0
    if argument[0] == tag:
        return 1
    return sum(tag_count(item, tag) for item in argument[1:]) if argument[0] == LIST else 0


def _is_argument(value: object, depth: int = 0) -> bool:
    if isinstance(value, bytes):
        return len(value) == 8
    if not isinstance(value, list):
        return isinstance(value, (bool, int, str))
    if value[:1] == [LIST]:
        return depth < MAX_DEPTH and all(_is_argument(item, depth + 1) for item in value[1:])
    return value == [] or _is_leaf(value[0], value[1:])


def _is_leaf(tag: object, rest: list[object]) -> bool:
    """Whether a tag is followed by what belongs to it."""
    if tag == TENSOR:
        return len(rest) == 1 and type(rest[0]) is int and 0 <= rest[0] <= 3
    if tag == COMPLEX:
        return len(rest) == 2 and all(isinstance(part, bytes) and len(part) == 8 for part in rest)
    if tag in (DEFAULT, NUMBER):
        return not rest
    return tag in (*NAMED, OPAQUE) and len(rest) == 1 and isinstance(rest[0], str)
