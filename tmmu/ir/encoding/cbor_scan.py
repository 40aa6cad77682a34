"""One linear look at canonical CBOR before anything is decoded: kinds, order, depth, counts, and what it would occupy.

The state is a stack of open containers; no recursion, no object per item. Arrays of numbers, of short texts and of
short arrays of numbers, which make up our files, are consumed many items at a time by patterns that never backtrack.
``cost`` bounds the bytes of the Python objects that decoding and reading make; it is compared with the file while the
scan goes on, so a file of many tiny items is refused before they exist.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from tmmu.errors import PlanCorrupt

FIX: Final = "make the file again with tmmu plan"
DEPTH_MAX: Final = 64
"""Containers open at once. Our deepest file has 6."""
ENTRIES_MAX: Final = 4096
"""Map entries of a file. Our formats have some dozens; tables are arrays."""
KEY_MAX: Final = 1024
"""Bytes of a key."""
OBJECT_FACTOR: Final = 15
OBJECT_BASE: Final = 48 << 20
"""Objects may take ``OBJECT_FACTOR`` times the bytes of the file and ``OBJECT_BASE`` more."""
CELL: Final = 8
"""Bytes of an item's place in a list, and in the tuple that is made of a column while its list is there."""
NUMBER: Final = 28
TEXT: Final = 76
ROW: Final = 56
MAP: Final = 232
"""Bytes of the largest object of each kind without its contents."""

# Heads of 1, 2, 3, 5 or 9 bytes, each number in the shortest; false, true, null. Negative numbers are looked at singly.
_NUMBER: Final = (
    b"(?:[\\x00-\\x17\\xf4-\\xf6]|\\x18[\\x18-\\xff]|\\x19(?!\\x00)..|\\x1a(?!\\x00\\x00).{4}|\\x1b(?!\\x00{4}).{8})"
)
_TEXT: Final = b"(?:%s)" % b"|".join(b"\\x%02x.{%d}" % (0x60 + n, n) for n in range(24))
_WIDE: Final = b"(?:[\\x00-\\x17]|\\x18[\\x18-\\xff]|\\x1a(?!\\x00\\x00).{4})"
"""Numbers of ids in a large file: no object, or one that five bytes stand for."""


def _rows_of(number: bytes) -> bytes:
    """A pattern of arrays of up to 23 numbers."""
    return b"(?:%s)" % b"|".join(b"\\x%02x%s{%d}+" % (0x80 + n, number, n) for n in range(24))


_RUNS: Final = (4096, 64, 1)
"""Items that a pattern consumes at once; the longest first."""
_ITEMS: Final = (
    *((0, "number", _NUMBER), (7, "number", _NUMBER), (3, "text", _TEXT)),
    *((4, "wide row", _rows_of(_WIDE)), (4, "row", _rows_of(_NUMBER))),
)
_PATTERNS: Final = {
    major: [
        (run, kind, re.compile(b"%s{%d}+" % (item, run), re.DOTALL))
        for run in _RUNS
        for of, kind, item in _ITEMS
        if of == major
    ]
    for major in (0, 3, 4, 7)
}
"""By major type, the patterns of runs that begin with it."""
_LEAST_OF_WIDTH: Final = {1: 24, 2: 1 << 8, 4: 1 << 16, 8: 1 << 32}
"""The least number whose shortest head has this many bytes after its first."""
_INDEFINITE: Final = {2: "string", 3: "text", 4: "array", 5: "map"}


@dataclass(slots=True)
class Piece:
    """A value at a path of keys below nested maps: ``data[start:end]``, itself a map, of no bytes here, or no map."""

    path: tuple[str, ...]
    start: int
    end: int


@dataclass(slots=True)
class _Container:
    """An open array or map with ``remaining`` items or entries; ``key`` is the last of a map, ``piece`` its place."""

    remaining: int
    is_map: bool
    piece: Piece | None
    key: bytes = b""


@dataclass(slots=True)
class Scan:
    """The state of a scan of ``data``: ``at`` is the next byte, ``cost`` the bytes of objects so far.

    ``widest`` is the most bytes of a column that is read: the tuple beside the list.
    """

    data: bytes
    at: int = 0
    cost: int = 0
    widest: int = 0
    entries: int = 0
    pieces: list[Piece] = field(default_factory=list)
    stack: list[_Container] = field(default_factory=list)


def scan(data: bytes) -> list[Piece]:
    """The maps of canonical CBOR and the values between them, in order; ``PlanCorrupt`` at the first byte that is none.

    Allowed are integers, booleans, null, strings, arrays, and maps whose keys are texts in canonical order. Time is
    linear in ``len(data)``, memory constant.
    """
    state = Scan(data)
    _open_value(state, Piece((), 0, 0))
    while state.stack:
        top = state.stack[-1]
        if not top.remaining:
            state.stack.pop()
            if top.piece and not top.is_map:
                top.piece.end = state.at
        elif top.is_map:
            _take_entry(state, top)
        elif not _take_run(state, top):
            top.remaining -= 1
            _open_value(state, None)
    if state.at != len(data):
        raise _refusal(f"not CBOR: {len(data) - state.at} bytes follow the value", state.at)
    return state.pieces


def _take_run(state: Scan, top: _Container) -> int:
    """Consumes items of one kind of an array, as many as the longest pattern that fits; how many they were."""
    start = state.at
    major = state.data[start] >> 5 if start < len(state.data) else 1
    for run, kind, pattern in _PATTERNS.get(major, ()):
        if run <= top.remaining and (match := pattern.match(state.data, start)):
            state.at = match.end()
            top.remaining -= run
            _charge(state, _run_cost(kind, run, state.data[start : state.at]))
            return run
    return 0


def _run_cost(kind: str, count: int, span: bytes) -> int:
    """At least the bytes of the objects of ``count`` items; a number up to 255 is no object of its own."""
    payload = len(span) - count
    if kind == "number":
        return CELL * count + NUMBER * min(count, payload // 2)
    if kind == "text":
        return (CELL + 50) * count + payload if span.isascii() else (CELL + TEXT) * count + 4 * payload
    # A list begins with room for four. A number of three bytes makes the most of its bytes: a place and an object;
    # among those of wide rows, one of one byte, a place.
    per_three_bytes = 3 * CELL if kind == "wide row" else CELL + NUMBER
    return (CELL + ROW) * count + 4 * CELL * min(count, payload) + per_three_bytes * payload // 3


def _take_entry(state: Scan, top: _Container) -> None:
    """The key of the next entry of a map, and its value or the begin of it."""
    top.remaining -= 1
    state.entries += 1
    if state.entries > ENTRIES_MAX:
        raise _refusal(f"not our CBOR: more than {ENTRIES_MAX} entries of maps", state.at)
    start = state.at
    major, length, body = _head(state)
    if major != 3 or length > KEY_MAX:
        raise _refusal("not our CBOR: a key that is no short text", start)
    state.at = body + length
    _require_within(state)
    key = state.data[start : state.at]
    if top.key and (len(top.key), top.key) >= (len(key), key):
        raise _refusal("not canonical CBOR: keys are out of order", start)
    top.key = key
    _charge(state, CELL + TEXT + 4 * length)
    try:
        path = (*top.piece.path, key[body - start :].decode()) if top.piece else ()
    except UnicodeDecodeError as error:
        raise _refusal("not CBOR: a key is no UTF-8", start) from error
    _open_value(state, Piece(path, state.at, state.at) if top.piece else None)


def _open_value(state: Scan, piece: Piece | None) -> None:
    """Consumes one scalar or string, or the head of a container; a value with a ``piece`` is noted."""
    major, length, body = _head(state)
    if piece:
        piece.start = state.at
        state.pieces.append(piece)
    state.at = body + (length if major in (2, 3) else 0)
    if major in (4, 5):
        _open_container(state, major, length, piece)
    elif piece:
        piece.end = state.at
    kinds = {2: CELL + 40 + length, 3: CELL + TEXT + 4 * length, 4: CELL + ROW + 32, 5: CELL + MAP}
    _charge(state, kinds.get(major, CELL + NUMBER))
    _require_within(state)


def _open_container(state: Scan, major: int, length: int, piece: Piece | None) -> None:
    """An array or map is entered, unless it says that it holds more than the file has bytes left."""
    is_map = major == 5
    if length * (2 if is_map else 1) > len(state.data) - state.at:
        raise _refusal(f"not CBOR: cut off: {length} items are announced at its end", state.at)
    if len(state.stack) == DEPTH_MAX:
        raise _refusal(f"not our CBOR: deeper than {DEPTH_MAX}", state.at)
    state.widest = max(state.widest, CELL * length)
    state.stack.append(_Container(length, is_map, piece))


def _head(state: Scan) -> tuple[int, int, int]:
    """(major type, length or number, first byte behind the head) at ``state.at``; the head is the shortest."""
    if state.at >= len(state.data):
        raise _refusal(f"not CBOR: cut off after {len(state.data)} bytes", len(state.data))
    head = state.data[state.at]
    major, minor = head >> 5, head & 31
    body = state.at + 1
    if minor < 24 and (major < 6 or (20 <= minor <= 22 and major == 7)):
        return major, minor, body
    width = 1 << (minor - 24) if 24 <= minor <= 27 else 0
    if not width or major >= 6:
        raise _refusal(f"not our CBOR: {_kind(head)}", state.at)
    number = int.from_bytes(state.data[body : body + width], "big")
    if body + width > len(state.data):
        raise _refusal(f"not CBOR: cut off after {len(state.data)} bytes", len(state.data))
    if number < _LEAST_OF_WIDTH[width]:
        raise _refusal("not canonical CBOR: a number is longer than it must be", state.at)
    return major, number, body + width


def _charge(state: Scan, cost: int) -> None:
    state.cost += cost
    if state.cost + state.widest > OBJECT_FACTOR * len(state.data) + OBJECT_BASE:
        raise _refusal(f"not our CBOR: too many items for {len(state.data)} bytes", state.at)


def _require_within(state: Scan) -> None:
    if state.at > len(state.data):
        raise _refusal(f"not CBOR: cut off after {len(state.data)} bytes", len(state.data))


def _refusal(problem: str, byte: int) -> PlanCorrupt:
    return PlanCorrupt(f"{problem} at byte {byte}", fix=FIX, byte=byte)


def _kind(head: int) -> str:
    """What a refused head byte announces: its upper 3 bits are the major type, its lower 5 the length."""
    major, minor = head >> 5, head & 31
    if major == 6:
        return "a tag"
    if minor == 31 and major in _INDEFINITE:
        return f"an indefinite {_INDEFINITE[major]}"
    if major == 7 and 25 <= minor <= 27:
        return "a float"
    return f"head byte {head:#04x} or what it announces"
