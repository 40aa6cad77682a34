"""Files back into values. Every byte may be hostile: what comes out is a whole graph or plan, or ``PlanCorrupt``.

A reader decides by type and range, column by column, and demands that the file be the one canonical spelling of what
it says. Ids are known to exist in the tables beside them; what a graph means is for ``rules``, whether a plan is
sound for ``check``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, NoReturn, TypeVar, cast

from tmmu.errors import PlanCorrupt
from tmmu.ir import cbor, form, graph, plan
from tmmu.ir.fault import U64_MAX, Fault
from tmmu.ir.files import read_file
from tmmu.ir.graph import Buffers, Graph, Notes, OpNotes, Ops, Values
from tmmu.ir.plan import Arenas, Placements, Plan, Slots
from tmmu.ir.rules import check_form

GRAPH_KEYS: Final = ("format", "version", "target", "buffers", "values", "ops", "inputs", "outputs", "notes")
PLAN_KEYS: Final = (
    *("format", "version", "spec", "ir_hash", "mode", "preset", "token_prefix", "order"),
    *("arenas", "slots", "buffers", "metrics", "digest"),
)
AGAIN: Final = "make the file again with tmmu plan"


T = TypeVar("T")


def read_graph(source: bytes | Path) -> Graph:
    """The graph of an IR file, its bytes or its path; ``PlanCorrupt`` unless it is one, whole and canonical."""
    return _read(source, _graph)


def read_plan(source: bytes | Path) -> Plan:
    """The plan of a file, its bytes or its path; ``PlanCorrupt`` unless it is one, whole, canonical, digest and all."""
    return _read(source, _plan)


def _read(source: bytes | Path, parse: Callable[[bytes], T]) -> T:
    if isinstance(source, bytes):
        return parse(source)
    data = read_file(source)
    try:
        return parse(data)
    except PlanCorrupt as error:
        fields = {"path": str(source)} | dict(error.fields)
        raise PlanCorrupt(f"{source}: {error.what}", fix=error.fix, **fields) from error


def _graph(data: bytes) -> Graph:
    top = _open(data, graph.FORMAT, graph.VERSION, GRAPH_KEYS)
    buffers = _table(top["buffers"], "buffers", Buffers.__slots__)
    values = _table(top["values"], "values", Values.__slots__)
    ops = _table(top["ops"], "ops", Ops.__slots__)
    found = Graph(
        target=_text(top["target"], "target"),
        buffers=Buffers(bytes=_uints(buffers["bytes"], "buffers.bytes"), role=_texts(buffers["role"], "buffers.role")),
        values=Values(
            buffer=_uints(values["buffer"], "values.buffer"),
            offset=_uints(values["offset"], "values.offset"),
            shape=_rows(values["shape"], "values.shape"),
            stride=_rows(values["stride"], "values.stride"),
            dtype=_texts(values["dtype"], "values.dtype"),
        ),
        ops=Ops(
            target=_texts(ops["target"], "ops.target"),
            reads=_rows(ops["reads"], "ops.reads"),
            writes=_rows(ops["writes"], "ops.writes"),
            overwrites=_pairs(ops["overwrites"], "ops.overwrites"),
            saves=_rows(ops["saves"], "ops.saves"),
            recompute=_bools(ops["recompute"], "ops.recompute"),
            stage=_texts(ops["stage"], "ops.stage"),
        ),
        inputs=_uints(top["inputs"], "inputs"),
        outputs=_uints(top["outputs"], "outputs"),
        notes=_notes(top["notes"]),
    )
    _demand(check_form(found))
    return found


def _notes(value: object) -> Notes:
    top = _table(value, "notes", ("name", "buffers", "ops"))
    names = _table(top["buffers"], "notes.buffers", ("name",))
    ops = _table(top["ops"], "notes.ops", OpNotes.__slots__)
    return Notes(
        name=_text(top["name"], "notes.name"),
        buffers=_texts(names["name"], "notes.buffers.name"),
        ops=OpNotes(
            phase=_texts(ops["phase"], "notes.ops.phase"),
            modality=_texts(ops["modality"], "notes.ops.modality"),
            flops=_uints(ops["flops"], "notes.ops.flops"),
            module=_texts(ops["module"], "notes.ops.module"),
            source=_texts(ops["source"], "notes.ops.source"),
        ),
    )


def _plan(data: bytes) -> Plan:
    top = _open(data, plan.FORMAT, plan.VERSION, PLAN_KEYS)
    if top["spec"] != plan.SPEC:
        _refuse("spec", f"is {top['spec']!r:.80}, not {plan.SPEC}")
    found = Plan(
        ir_hash=_fixed(top["ir_hash"], "ir_hash", 32),
        mode=_text(top["mode"], "mode"),
        preset=_text(top["preset"], "preset"),
        token_prefix=_fixed(top["token_prefix"], "token_prefix", 8),
        order=_uints(top["order"], "order"),
        arenas=_arenas(top["arenas"]),
        slots=Slots(**_columns(top["slots"], "slots", Slots.__slots__)),
        buffers=Placements(**_columns(top["buffers"], "buffers", Placements.__slots__)),
        metrics=_metrics(top["metrics"]),
    )
    _demand(form.faults(found))
    if _fixed(top["digest"], "digest", 32) != found.digest:
        _refuse("digest", "is not that of the rest of the file")
    return found


def _arenas(value: object) -> Arenas:
    top = _table(value, "arenas", Arenas.__slots__)
    texts = {name: _texts(top[name], f"arenas.{name}") for name in ("name", "segment", "layout")}
    numbers = ("alignment", "page", "capacity", "slots", "peak", "bound")
    return Arenas(
        name=texts["name"],
        segment=texts["segment"],
        layout=texts["layout"],
        proven=_bools(top["proven"], "arenas.proven"),
        **{name: _uints(top[name], f"arenas.{name}") for name in numbers},
    )


def _metrics(value: object) -> Mapping[str, int]:
    if not isinstance(value, dict):
        _refuse("metrics", f"is {_kind(value)}, not a map")
    return dict(zip(_texts(list(value), "metrics"), _uints(list(value.values()), "metrics"), strict=True))


def _open(data: bytes, name: str, version: int, keys: tuple[str, ...]) -> Mapping[str, object]:
    """The top map of a file of this format and version."""
    top = cbor.decode(data)
    if not isinstance(top, dict) or top.get("format") != name:
        _refuse("format", f"is {_kind(top)}, not {name}" if not isinstance(top, dict) else f"is not {name}")
    found = top.get("version")
    if type(found) is not int or found < 1:
        _refuse("version", f"is {found!r:.80}, not a version")
    if found > version:
        fix = "read it with a newer tmmu"
        raise PlanCorrupt(f"{name} version {found} is newer than this program's {version}", fix=fix, where="version")
    return _table(top, name, keys)


def _table(value: object, where: str, keys: Iterable[str]) -> Mapping[str, object]:
    """A map of exactly these keys."""
    if not isinstance(value, dict):
        _refuse(where, f"is {_kind(value)}, not a map")
    wanted = tuple(keys)
    for key in value:
        if key not in wanted:
            _refuse(where, f"has the unknown key {key!r:.80}")
    for key in wanted:
        if key not in value:
            _refuse(where, f"lacks the key {key!r}")
    return value


def _columns(value: object, where: str, keys: Iterable[str]) -> dict[str, tuple[int, ...]]:
    return {name: _uints(column, f"{where}.{name}") for name, column in _table(value, where, keys).items()}


def _uints(value: object, where: str) -> tuple[int, ...]:
    column = cast("list[int]", _column(value, where, int))
    _in_range(column, where)
    return tuple(column)


def _texts(value: object, where: str) -> tuple[str, ...]:
    return tuple(cast("list[str]", _column(value, where, str)))


def _bools(value: object, where: str) -> tuple[bool, ...]:
    return tuple(cast("list[bool]", _column(value, where, bool)))


def _rows(value: object, where: str) -> tuple[tuple[int, ...], ...]:
    rows = cast("list[list[int]]", _column(value, where, list))
    flat = list(chain.from_iterable(rows))
    _column(flat, where, int)
    _in_range(flat, where)
    return tuple(map(tuple, rows))


def _pairs(value: object, where: str) -> tuple[tuple[tuple[int, int], ...], ...]:
    rows = cast("list[list[object]]", _column(value, where, list))
    pairs = _rows(list(chain.from_iterable(rows)), where)
    if set(map(len, pairs)) - {2}:
        _refuse(where, "holds what is not a pair")
    each = iter(cast("tuple[tuple[int, int], ...]", pairs))
    return tuple(tuple(next(each) for _ in row) for row in rows)


def _column(value: object, where: str, kind: type) -> list[object]:
    """An array whose items all have exactly this type."""
    if not isinstance(value, list):
        _refuse(where, f"is {_kind(value)}, not an array")
    others = set(map(type, value)) - {kind}
    if others:
        _refuse(where, f"holds {', '.join(sorted(other.__name__ for other in others))}, not only {kind.__name__}")
    return value


def _in_range(column: list[int], where: str) -> None:
    if column and not 0 <= min(column) <= max(column) <= U64_MAX:
        _refuse(where, "leaves the unsigned 64-bit numbers")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        _refuse(where, f"is {_kind(value)}, not text")
    return value


def _fixed(value: object, where: str, length: int) -> bytes:
    if not isinstance(value, bytes) or len(value) != length:
        _refuse(where, f"is {_kind(value)}, not {length} bytes")
    return value


def _kind(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"


def _demand(faults: Iterator[Fault] | tuple[Fault, ...]) -> None:
    for fault in faults:
        _refuse(fault.rule, fault.what)


def _refuse(where: str, what: str) -> NoReturn:
    raise PlanCorrupt(f"{where}: {what}", fix=AGAIN, where=where)
