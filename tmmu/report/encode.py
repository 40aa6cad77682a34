"""The contents of a page as JSON for its script: columns, texts interned, no number above what a double holds.

A whole number from 2**53 on is a text of its decimal digits. ``<``, ``>`` and ``&`` are escaped, and everything beyond
ASCII, so that the text can stand in a ``script`` element whatever names a model has. The same contents give the same
bytes.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from tmmu.report.buffers import MapBuffer
from tmmu.report.contents import EagerTimeline, PositionNotes, ReportContents
from tmmu.report.ring_bars import RingChart
from tmmu.report.slabs import MapSlab

EXACT_MAX: Final = 2**53 - 1
"""The largest whole number below which a double holds all."""
_ESCAPES: Final = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "<>&"})

Exact = int | str
Table = dict[str, object]


def exact(number: int) -> Exact:
    """The number, or its digits where a double does not hold it."""
    return number if -EXACT_MAX <= number <= EXACT_MAX else str(number)


def json_text(plans: Sequence[ReportContents]) -> str:
    """The JSON of these plans; ASCII, safe in a ``script`` element."""
    table = {"version": 1, "plans": [_plan_table(plan) for plan in plans]}
    return json.dumps(table, ensure_ascii=True, separators=(",", ":")).translate(_ESCAPES)


@dataclass(slots=True)
class _Texts:
    """Texts by number, first met first."""

    rows: dict[str, int] = field(default_factory=dict)

    def numbers(self, texts: Iterable[str]) -> list[int]:
        return [self.rows.setdefault(text, len(self.rows)) for text in texts]


def _plan_table(plan: ReportContents) -> Table:
    texts = _Texts()
    table: Table = {
        "title": plan.title,
        "figures": _exact_table(asdict(plan.figures)),
        "arenas": {"name": list(plan.arenas.name), "alignment": _exact_list(plan.arenas.alignment)},
        "slots": {"slot": list(plan.slots.slot), "address": [f"0x{address:016x}" for address in plan.slots.address]},
        "slabs": [_slab_table(slab) for slab in plan.slabs],
        "buffers": _buffer_table(plan.buffers, texts),
        "positions": _position_table(plan.positions, texts),
        "eager": None if plan.eager is None else _eager_table(plan.eager, texts),
        "ring": None if plan.ring is None else _ring_table(plan.ring),
    }
    return table | {"texts": list(texts.rows)}


def _exact_list(numbers: Iterable[int]) -> list[Exact]:
    return [exact(number) for number in numbers]


def _exact_table(fields: Table) -> Table:
    return {name: exact(value) if isinstance(value, int) else value for name, value in fields.items()}


def _slab_table(slab: MapSlab) -> Table:
    return {
        "name": slab.name,
        "segment": slab.segment,
        "arenas": list(slab.arenas),
        "bytes": exact(slab.bytes),
        "bound": exact(slab.bound),
        "proven": slab.proven,
        "capacities": [[name, exact(size)] for name, size in slab.capacities],
        "levels": _level_table(slab.levels),
        "peakPosition": exact(slab.peak_position),
        "peakBytes": exact(slab.peak_bytes),
        "live": list(slab.live),
    }


def _level_table(levels: Sequence[tuple[int, int]]) -> Table:
    return {"at": _exact_list(at for at, _ in levels), "bytes": _exact_list(size for _, size in levels)}


def _buffer_table(rows: Sequence[MapBuffer], texts: _Texts) -> Table:
    return {
        "id": [row.id for row in rows],
        "name": texts.numbers(row.name for row in rows),
        "role": texts.numbers(row.role for row in rows),
        "dtype": texts.numbers(row.dtype for row in rows),
        "windows": [texts.numbers(row.windows) for row in rows],
        "module": texts.numbers(row.module for row in rows),
        "source": texts.numbers(row.source for row in rows),
        "op": texts.numbers(row.op for row in rows),
        "arena": [row.arena for row in rows],
        "slotRow": [row.slot_row for row in rows],
        "offset": _exact_list(row.offset for row in rows),
        "bytes": _exact_list(row.bytes for row in rows),
        "size": [None if row.size is None else exact(row.size) for row in rows],
        "birth": _exact_list(row.birth for row in rows),
        "death": _exact_list(row.death for row in rows),
        "takesOver": [row.takes_over for row in rows],
        "writers": [list(row.writers) for row in rows],
        "readers": [list(row.readers) for row in rows],
    }


def _position_table(notes: PositionNotes, texts: _Texts) -> Table:
    return {
        "op": texts.numbers(notes.op),
        "module": texts.numbers(notes.module),
        "source": texts.numbers(notes.source),
    }


def _eager_table(eager: EagerTimeline, texts: _Texts) -> Table:
    live = eager.live
    return {
        "calls": eager.calls,
        "peakBytes": exact(eager.figures.stack_bytes),
        "peakPosition": eager.figures.position,
        "levels": _level_table(eager.levels),
        "live": {
            "bytes": _exact_list(row.bytes for row in live),
            "module": texts.numbers(row.module for row in live),
            "op": texts.numbers(row.maker for row in live),
            "source": texts.numbers(row.source for row in live),
            "holder": texts.numbers(row.holder for row in live),
        },
    }


def _ring_table(ring: RingChart) -> Table:
    bars = ring.bars
    return {
        "policy": ring.policy,
        "capacity": exact(ring.capacity),
        "bytes": exact(ring.bytes),
        "blocks": {
            "name": [block.name for block in ring.blocks],
            "address": _exact_list(block.address for block in ring.blocks),
            "bytes": _exact_list(block.bytes for block in ring.blocks),
        },
        "bars": {
            "block": [bar.block for bar in bars],
            "kind": [bar.kind for bar in bars],
            "start": [bar.start for bar in bars],
            "end": [bar.end for bar in bars],
        },
    }
