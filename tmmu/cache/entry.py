"""One entry as bytes: a head, a digest over all else, and a map of key, graph and plan.

The digest is checked before anything is decoded, so that chance cannot reach a decoder; what is decoded then is still
demanded to be canonical and well formed, so that malice gains nothing by writing a digest of its own.
"""

from dataclasses import dataclass
from typing import Final, NoReturn

from blake3 import blake3

from tmmu.cache.miss import Miss, MissReason
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import TmmuError
from tmmu.ir import cbor
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.key import Key, Part, key_of
from tmmu.ir.plan import Plan, encode_plan

MAGIC: Final = b"tmmu.cache "
VERSION: Final = 1
_LENGTH: Final = 8
_DIGEST: Final = 32
_START: Final = len(MAGIC) + 2
"""Where the length begins: after the version in one digit and a line end."""
HEAD: Final = _START + _LENGTH + _DIGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What an intact entry says; graph and plan are still bytes."""

    key: Key
    graph: bytes
    plan: bytes


class Refused(Exception):
    """The bytes are no entry that may be served; ``miss`` says why."""

    def __init__(self, reason: MissReason, detail: str = "") -> None:
        super().__init__(detail)
        self.miss = Miss(reason, detail)


def encode_entry(key: Key, graph: Graph, plan: Plan) -> bytes:
    """The bytes of an entry."""
    parts = [[part.name, part.digest, part.text] for part in key.parts]
    body = cbor.encode({"key": parts, "graph": encode_graph(graph), "plan": encode_plan(plan)})
    start = b"%s%d\n%s" % (MAGIC, VERSION, len(body).to_bytes(_LENGTH, "little"))
    return start + blake3(start).update(body).digest() + body


def decode_entry(data: bytes) -> Entry:
    """The entry whose bytes these are, every one of them as it was written; else ``Refused``."""
    _check_head(data)
    if blake3(data[: HEAD - _DIGEST]).update(data[HEAD:]).digest() != data[HEAD - _DIGEST : HEAD]:
        raise Refused(MissReason.DAMAGED, "its digest is another")
    try:
        body = cbor.decode(data[HEAD:])
    except TmmuError as error:
        raise Refused(MissReason.DAMAGED, error.what) from error
    if not isinstance(body, dict) or set(body) != {"key", "graph", "plan"}:
        _refuse("its map has other keys")
    graph, plan = body["graph"], body["plan"]
    if not isinstance(graph, bytes) or not isinstance(plan, bytes):
        _refuse("graph and plan are no bytes")
    return Entry(key=_key(body["key"]), graph=graph, plan=plan)


def _check_head(data: bytes) -> None:
    """Ours, of this version, and as long as it says."""
    known = min(len(data), len(MAGIC))
    if data[:known] != MAGIC[:known]:
        raise Refused(MissReason.FOREIGN, "it does not begin as one")
    if len(data) < HEAD:
        raise Refused(MissReason.CUT_OFF, f"{len(data)} bytes")
    version = data[len(MAGIC) : _START]
    if version != b"%d\n" % VERSION:
        raise Refused(MissReason.VERSION, f"{version[:1]!r}, not {VERSION}")
    length = int.from_bytes(data[_START : _START + _LENGTH], "little")
    if len(data) - HEAD < length:
        raise Refused(MissReason.CUT_OFF, f"{len(data) - HEAD} of {length} bytes")


def _key(rows: object) -> Key:
    """Parts in the one order that a key has."""
    if not isinstance(rows, list):
        _refuse("its key is no array")
    key = key_of(_part(row) for row in rows)
    if [part.name for part in key.parts] != [row[0] for row in rows]:
        _refuse("its key is out of order")
    return key


def _part(row: object) -> Part:
    if not isinstance(row, list) or [type(cell) for cell in row] != [str, bytes, str] or len(row[1]) != _DIGEST:
        _refuse("its key has a part that is none")
    return Part(*row)


def _refuse(detail: str) -> NoReturn:
    raise Refused(MissReason.DAMAGED, detail)


def open_entry(entry: Entry) -> tuple[Graph, Plan]:
    """Graph and plan, well formed and made for each other; not yet judged."""
    try:
        graph, plan = read_graph(entry.graph), read_plan(entry.plan)
    except TmmuError as error:
        raise Refused(MissReason.DAMAGED, error.what) from error
    if plan.ir_hash != graph.ir_hash:
        _refuse("its plan is another graph's")
    return graph, plan
