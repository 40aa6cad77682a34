"""A row for each placed buffer, as CSV and as JSON lines."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Final

from tmmu.eager.peak import eager_run
from tmmu.export.buffer_rows import PlacedBuffer, buffer_rows, items_of
from tmmu.export.cells import cell_of
from tmmu.ir.encoding.columns import column_map
from tmmu.ir.graph import Graph
from tmmu.ir.lifetimes import EagerRun, Lifetimes
from tmmu.ir.plan import Arenas, Plan

FORMAT: Final = "tmmu.export"
VERSION: Final = 1

COLUMNS: Final = (
    "id",
    "name",
    "role",
    "dtypes",
    "bytes",
    "padded_bytes",
    "arena",
    "slot",
    "plan_offset",
    "address",
    "birth",
    "death",
    "takes_over",
    "maker",
    "module",
    "source",
    "lower",
    "upper",
    "size",
    "alignment",
)
"""Of the CSV, in this order; new ones come last. ``tmmu pack`` reads ``id`` and the last four."""


def encode_csv(plan: Plan, graph: Graph | None, run: str) -> bytes:  # noqa: ARG001 - a row of the table of formats
    """A header and a row for each placed buffer, by id; lines end in LF, texts are cells of ``cell_of``."""
    spans = _packing_spans(plan)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_csv_row(row, spans[row.id]) for row in buffer_rows(plan, graph))
    return text.getvalue().encode("utf-8")


def _packing_spans(plan: Plan) -> dict[int, tuple[int, int, int]]:
    """Per buffer (lower, upper, size): of its item for an item's first buffer, nothing for those that take it over."""
    placed = plan.buffers
    spans: dict[int, tuple[int, int, int]] = {}
    for buffer, birth in zip(placed.id, placed.birth, strict=True):
        spans[buffer] = (birth, birth, 0)
    for item in items_of(plan):
        spans[placed.id[item.rows[0]]] = (item.birth, item.death, item.bytes)
    return spans


def _csv_row(row: PlacedBuffer, span: tuple[int, int, int]) -> tuple[object, ...]:
    return (
        row.id,
        cell_of(row.name),
        row.role,
        " ".join(row.dtypes),
        "" if row.bytes is None else row.bytes,
        row.padded_bytes,
        row.arena,
        row.slot,
        row.offset,
        _address(row.address),
        row.birth,
        row.death,
        "" if row.takes_over is None else row.takes_over,
        cell_of(row.maker),
        cell_of(row.module),
        cell_of(row.source),
        *span,
        row.alignment,
    )


def _address(number: int) -> str:
    """Readers of numbers round 64 bits."""
    return f"0x{number:016x}"


def encode_json(plan: Plan, graph: Graph | None, run: str) -> bytes:  # noqa: ARG001 - a row of the table of formats
    """JSON lines, an object each: the plan, its arenas, its buffers, then eager's run and its storages if known."""
    lines = (json.dumps(record, ensure_ascii=True) for record in _records(plan, graph))
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def _records(plan: Plan, graph: Graph | None) -> Iterator[dict[str, object]]:
    yield {
        "record": "plan",
        "format": FORMAT,
        "version": VERSION,
        "model": graph.notes.name if graph else "",
        "target": graph.target if graph else "",
        "mode": plan.mode,
        "preset": plan.preset,
        "positions": len(plan.order),
        "ir_hash": plan.ir_hash.hex(),
        "plan_digest": plan.digest.hex(),
    }
    yield from _rows_as_records("arena", plan.arenas)
    for row in buffer_rows(plan, graph):
        fields = {name: getattr(row, name) for name in PlacedBuffer.__slots__}
        yield {"record": "buffer", **fields, "address": _address(row.address)}
    eager = eager_run(graph, plan.mode) if graph else None
    if eager is not None:
        yield from _eager_records(eager)


def _eager_records(eager: EagerRun) -> Iterator[dict[str, object]]:
    yield {
        "record": "eager",
        "python": eager.python,
        "calls": eager.calls,
        "persistent_bytes": eager.persistent_bytes,
    }
    yield from _rows_as_records("storage", eager.storages)
    yield from _rows_as_records("host_storage", eager.host)


def _rows_as_records(kind: str, table: Arenas | Lifetimes) -> Iterator[dict[str, object]]:
    """One record per row of a table of columns."""
    names = tuple(name for name, column in column_map(table).items() if column)
    for row in zip(*(getattr(table, name) for name in names), strict=True):
        yield {"record": kind, **dict(zip(names, row, strict=True))}
