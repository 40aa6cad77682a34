"""Reading files: every byte may be hostile, and what comes out is a whole graph or plan, or ``PlanCorrupt``.

A file is decoded, encoded again and compared, so a value has one file. Then each column is checked for type and range,
and the whole for its schema: ids exist in the tables beside them. What a graph means is left to ``judge.rules``,
whether a plan is sound to ``judge.check``.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from tmmu.codec.files import read_file
from tmmu.errors import PlanCorrupt
from tmmu.ir import graph, plan
from tmmu.ir.encoding import cbor
from tmmu.ir.encoding.columns import (
    bools,
    byte_string,
    byte_string_rows,
    byte_strings,
    describe,
    pairs,
    refuse,
    rows,
    table,
    text,
    texts,
    uint_columns,
    uints,
)
from tmmu.ir.fault import Fault
from tmmu.ir.graph import Buffers, Graph, Notes, OpCalls, OpNotes, Ops, Values
from tmmu.ir.ids import Bytes
from tmmu.ir.lifetimes import LIFETIME_NUMBERS, NO_LIFETIMES, OPTIONAL, STREAM, EagerRun, Lifetimes
from tmmu.ir.plan import Arenas, Placements, Plan, Slots
from tmmu.judge import schema
from tmmu.judge.graph_schema import SCHEMA_CHECKS
from tmmu.judge.rewrite.fit_schema import parse_fit
from tmmu.judge.ring_schema import parse_ring

GRAPH_KEYS: Final = ("format", "version", "target", "buffers", "values", "ops", "inputs", "outputs", "notes")
CALL_KEYS: Final = ("calls",)
CALL_COLUMNS: Final = ("call", "operands", "effect")
NOTES_KEYS: Final = ("name", "buffers", "ops")
PLAN_KEYS: Final = (
    *("format", "version", "spec", "ir_hash", "mode", "preset", "token_prefix", "order"),
    *("arenas", "slots", "buffers", "metrics", "digest"),
)
PLAN_OPTIONAL: Final = ("ring", "fit")

T = TypeVar("T")


def read_graph(source: bytes | Path) -> Graph:
    """The graph of an IR file, given as bytes or path; ``PlanCorrupt`` unless it is one, whole and canonical."""
    return _read(source, _graph)


def read_plan(source: bytes | Path) -> Plan:
    """The plan of a plan file, given as bytes or path; ``PlanCorrupt`` unless it is whole, canonical and sealed."""
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
    top = _top_map(data, graph.FORMAT, graph.VERSION, GRAPH_KEYS, CALL_KEYS)
    with_calls = top["version"] != graph.CALL_FREE_VERSION
    table(top, graph.FORMAT, (*GRAPH_KEYS, *(CALL_KEYS if with_calls else ())))
    buffers = table(top["buffers"], "buffers", Buffers.__slots__)
    values = table(top["values"], "values", Values.__slots__)
    ops = table(top["ops"], "ops", (*Ops.__slots__, *(CALL_COLUMNS if with_calls else ())))
    parsed = Graph(
        target=text(top["target"], "target"),
        buffers=Buffers(bytes=uints(buffers["bytes"], "buffers.bytes"), role=texts(buffers["role"], "buffers.role")),
        values=Values(
            buffer=uints(values["buffer"], "values.buffer"),
            offset=uints(values["offset"], "values.offset"),
            shape=rows(values["shape"], "values.shape"),
            stride=rows(values["stride"], "values.stride"),
            dtype=texts(values["dtype"], "values.dtype"),
        ),
        ops=Ops(
            target=texts(ops["target"], "ops.target"),
            reads=rows(ops["reads"], "ops.reads"),
            writes=rows(ops["writes"], "ops.writes"),
            overwrites=pairs(ops["overwrites"], "ops.overwrites"),
            saves=rows(ops["saves"], "ops.saves"),
            recompute=bools(ops["recompute"], "ops.recompute"),
            stage=texts(ops["stage"], "ops.stage"),
        ),
        inputs=uints(top["inputs"], "inputs"),
        outputs=uints(top["outputs"], "outputs"),
        notes=_notes(top["notes"], with_calls=with_calls),
        calls=_calls(top, ops) if with_calls else None,
    )
    _refuse_faults(fault for check in SCHEMA_CHECKS for fault in check(parsed, None))
    return parsed


def _calls(top: Mapping[str, object], ops: Mapping[str, object]) -> OpCalls:
    notes = table(top["notes"], "notes", _notes_keys(top["notes"]))
    numbers = table(notes["ops"], "notes.ops", (*OpNotes.__slots__, "numbers"))["numbers"]
    return OpCalls(
        texts=byte_strings(top["calls"], "calls"),
        call=uints(ops["call"], "ops.call"),
        operands=rows(ops["operands"], "ops.operands"),
        effect=texts(ops["effect"], "ops.effect"),
        numbers=byte_string_rows(numbers, "notes.ops.numbers"),
    )


def _notes_keys(value: object) -> tuple[str, ...]:
    return (*NOTES_KEYS, "eager") if isinstance(value, dict) and "eager" in value else NOTES_KEYS


def _notes(value: object, *, with_calls: bool) -> Notes:
    top = table(value, "notes", _notes_keys(value) if with_calls else NOTES_KEYS)
    names = table(top["buffers"], "notes.buffers", ("name",))
    ops = table(top["ops"], "notes.ops", (*OpNotes.__slots__, *(("numbers",) if with_calls else ())))
    return Notes(
        name=text(top["name"], "notes.name"),
        buffers=texts(names["name"], "notes.buffers.name"),
        ops=OpNotes(
            phase=texts(ops["phase"], "notes.ops.phase"),
            modality=texts(ops["modality"], "notes.ops.modality"),
            flops=uints(ops["flops"], "notes.ops.flops"),
            module=texts(ops["module"], "notes.ops.module"),
            source=texts(ops["source"], "notes.ops.source"),
        ),
        eager=_eager(top["eager"]) if "eager" in top else None,
    )


def _eager(value: object) -> EagerRun:
    absent = {key for key in OPTIONAL if isinstance(value, dict) and key not in value}
    top = table(value, "notes.eager", [key for key in EagerRun.__slots__ if key not in absent])
    return EagerRun(
        python=text(top["python"], "notes.eager.python"),
        calls=_number(top["calls"], "notes.eager.calls"),
        persistent_bytes=Bytes(_number(top["persistent_bytes"], "notes.eager.persistent_bytes")),
        storages=_lifetimes(top["storages"], "notes.eager.storages"),
        host=_lifetimes(top["host"], "notes.eager.host") if "host" in top else NO_LIFETIMES,
        own_step="own_step" in top and bools([top["own_step"]], "notes.eager.own_step")[0],
        in_parts=texts(top["in_parts"], "notes.eager.in_parts") if "in_parts" in top else (),
    )


def _lifetimes(value: object, key: str) -> Lifetimes:
    has_streams = isinstance(value, dict) and STREAM in value
    names = [name for name in Lifetimes.__slots__ if name != STREAM or has_streams]
    columns = table(value, key, names)
    cells: dict[str, Any] = {
        name: (uints if name in LIFETIME_NUMBERS else texts)(columns[name], f"{key}.{name}") for name in names
    }
    return Lifetimes(**cells)


def _number(value: object, key: str) -> int:
    """An unsigned 64-bit number by itself."""
    numbers: tuple[int, ...] = uints([value], key)
    return numbers[0]


def _plan(data: bytes) -> Plan:
    top = _top_map(data, plan.FORMAT, plan.VERSION, PLAN_KEYS, PLAN_OPTIONAL)
    if top["spec"] != plan.SPEC:
        refuse("spec", f"is {top['spec']!r:.80}, not {plan.SPEC}")
    parsed = Plan(
        ir_hash=byte_string(top["ir_hash"], "ir_hash", 32),
        mode=text(top["mode"], "mode"),
        preset=text(top["preset"], "preset"),
        token_prefix=byte_string(top["token_prefix"], "token_prefix", 8),
        order=uints(top["order"], "order"),
        arenas=_arenas(top["arenas"]),
        slots=Slots(**uint_columns(top["slots"], "slots", Slots.__slots__)),
        buffers=Placements(**uint_columns(top["buffers"], "buffers", Placements.__slots__)),
        metrics=_metrics(top["metrics"]),
        ring=parse_ring(top["ring"]) if "ring" in top else None,
        fit=parse_fit(top["fit"]) if "fit" in top else None,
    )
    _refuse_faults(fault for check in schema.CHECKS for fault in check(parsed))
    if byte_string(top["digest"], "digest", 32) != parsed.digest:
        refuse("digest", "is not that of the rest of the file")
    return parsed


def _arenas(value: object) -> Arenas:
    top = table(value, "arenas", Arenas.__slots__)
    words = {name: texts(top[name], f"arenas.{name}") for name in ("name", "segment", "layout")}
    numbers = ("alignment", "page", "capacity", "slots", "peak", "bound")
    return Arenas(
        name=words["name"],
        segment=words["segment"],
        layout=words["layout"],
        proven=bools(top["proven"], "arenas.proven"),
        **{name: uints(top[name], f"arenas.{name}") for name in numbers},
    )


def _metrics(value: object) -> Mapping[str, int]:
    if not isinstance(value, dict):
        refuse("metrics", f"is {describe(value)}, not a map")
    return dict(zip(texts(list(value), "metrics"), uints(list(value.values()), "metrics"), strict=True))


def _top_map(
    data: bytes, name: str, version: int, keys: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Mapping[str, object]:
    """The top map of a file of this format and version."""
    top = cbor.decode(data)
    if not isinstance(top, dict) or top.get("format") != name:
        refuse("format", f"is {describe(top)}, not {name}" if not isinstance(top, dict) else f"is not {name}")
    file_version = top.get("version")
    if type(file_version) is not int or file_version < 1:
        refuse("version", f"is {file_version!r:.80}, not a version")
    if file_version > version:
        fix = "read it with a newer tmmu"
        raise PlanCorrupt(
            f"{name} version {file_version} is newer than this program's {version}", fix=fix, where="version"
        )
    return table(top, name, (*keys, *(key for key in optional if key in top)))


def _refuse_faults(faults: Iterable[Fault]) -> None:
    """Raises for the first fault; no other is looked for, since a hostile file can have one in every cell."""
    for fault in faults:
        refuse(fault.rule, fault.what)
