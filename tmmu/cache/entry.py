"""The file format of one cache entry: a header with a digest, then a CBOR map of key, graph and plan.

The digest is checked before anything is decoded: random damage never reaches a decoder. What is decoded after that
must still be canonical and well formed: a digest is no signature, and whoever forges an entry can compute one. The
layout is in docs/spec/cache.md, section Files.
"""

from dataclasses import dataclass
from typing import Final, NoReturn

from blake3 import blake3

from tmmu.cache.miss import Miss, MissReason
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import TmmuError
from tmmu.ir.encoding import cbor
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.key import Key, Part, key_of, part_of
from tmmu.ir.plan import Plan, encode_plan

MAGIC: Final = b"tmmu.cache "
VERSION: Final = 1
_LENGTH_BYTES: Final = 8
_DIGEST_BYTES: Final = 32
_LENGTH_OFFSET: Final = len(MAGIC) + 2
"""Offset of the length field: after magic, one digit of version and a line end."""
HEADER_BYTES: Final = _LENGTH_OFFSET + _LENGTH_BYTES + _DIGEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An intact entry; graph and plan are still encoded."""

    key: Key
    graph: bytes
    plan: bytes


class EntryRefused(Exception):
    """The file cannot be served as an entry; ``miss`` says why. Never leaves ``tmmu.cache`` and ``tmmu cache``."""

    def __init__(self, reason: MissReason, detail: str = "") -> None:
        super().__init__(detail)
        self.miss = Miss(reason, detail)


def encode_entry(key: Key, graph: Graph, plan: Plan) -> bytes:
    """The bytes of an entry file."""
    parts = [[part.name, part.digest, part.text] for part in key.parts]
    body = cbor.encode({"key": parts, "graph": encode_graph(graph), "plan": encode_plan(plan)})
    start = b"%s%d\n%s" % (MAGIC, VERSION, len(body).to_bytes(_LENGTH_BYTES, "little"))
    return start + blake3(start).update(body).digest() + body


def decode_entry(data: bytes) -> Entry:
    """The entry of these bytes; ``EntryRefused`` if a byte is not as it was written."""
    _check_header(data)
    if (
        blake3(data[: HEADER_BYTES - _DIGEST_BYTES]).update(data[HEADER_BYTES:]).digest()
        != data[HEADER_BYTES - _DIGEST_BYTES : HEADER_BYTES]
    ):
        raise EntryRefused(MissReason.DAMAGED, "its digest is another")
    try:
        body = cbor.decode(data[HEADER_BYTES:])
    except TmmuError as error:
        raise EntryRefused(MissReason.DAMAGED, error.what) from error
    if not isinstance(body, dict) or set(body) != {"key", "graph", "plan"}:
        _refuse_damaged("its map has other keys")
    graph, plan = body["graph"], body["plan"]
    if not isinstance(graph, bytes) or not isinstance(plan, bytes):
        _refuse_damaged("graph and plan are no bytes")
    return Entry(key=_decode_key(body["key"]), graph=graph, plan=plan)


def _check_header(data: bytes) -> None:
    """Magic, version and length are right; a file cut off anywhere is told from a foreign one."""
    prefix_length = min(len(data), len(MAGIC))
    if data[:prefix_length] != MAGIC[:prefix_length]:
        raise EntryRefused(MissReason.FOREIGN, "it does not begin as one")
    if len(data) < HEADER_BYTES:
        raise EntryRefused(MissReason.CUT_OFF, f"{len(data)} bytes")
    version = data[len(MAGIC) : _LENGTH_OFFSET]
    if version != b"%d\n" % VERSION:
        raise EntryRefused(MissReason.VERSION, f"{version[:1]!r}, not {VERSION}")
    length = int.from_bytes(data[_LENGTH_OFFSET : _LENGTH_OFFSET + _LENGTH_BYTES], "little")
    if len(data) - HEADER_BYTES < length:
        raise EntryRefused(MissReason.CUT_OFF, f"{len(data) - HEADER_BYTES} of {length} bytes")


def _decode_key(rows: object) -> Key:
    """The key of the encoded parts, which must be sorted by name, each name once."""
    if not isinstance(rows, list):
        _refuse_damaged("its key is no array")
    key = key_of(_decode_part(row) for row in rows)
    if [part.name for part in key.parts] != [row[0] for row in rows]:
        _refuse_damaged("its key is out of order")
    return key


def _decode_part(row: object) -> Part:
    if not isinstance(row, list) or [type(cell) for cell in row] != [str, bytes, str] or len(row[1]) != _DIGEST_BYTES:
        _refuse_damaged("its key has a part that is none")
    return Part(*row)


def _refuse_damaged(detail: str) -> NoReturn:
    raise EntryRefused(MissReason.DAMAGED, detail)


def open_entry(entry: Entry) -> tuple[Graph, Plan]:
    """Graph and plan: well formed, the plan for this graph by its hash, and not judged."""
    try:
        graph, plan = read_graph(entry.graph), read_plan(entry.plan)
    except TmmuError as error:
        raise EntryRefused(MissReason.DAMAGED, error.what) from error
    if plan.ir_hash != graph.ir_hash:
        _refuse_damaged("its plan is another graph's")
    requested = {"mode": plan.mode, "preset": plan.preset}
    for part in entry.key.parts:
        if part.name in requested and part_of(part.name, requested[part.name]).digest != part.digest:
            _refuse_damaged(f"its plan has another {part.name} than its key")
    return graph, plan
