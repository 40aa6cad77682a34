"""The parts of a page that need no script: figures and tables as HTML, every value escaped."""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from tmmu.planner.arenas import readable_size
from tmmu.report.buffers import MapBuffer
from tmmu.report.contents import ReportContents, ReportFigures
from tmmu.report.curve_figure import curve_html

LISTED_BUFFERS: Final = 100
LISTED_SLOTS: Final = 200
_UNWRITABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""What a parser of HTML drops, replaces or calls an error."""

Row = Sequence[str]
"""The cells of a row, as HTML."""


def plan_html(index: int, plan: ReportContents) -> str:
    """The tables of one plan, and the places that the script fills."""
    return "\n".join(
        (
            f'<section class="plan" data-plan="{index}" aria-label="Plan {index + 1}">',
            f"<h2>{text_html(plan.title)}</h2>",
            f'<p class="summary">{_summary(plan)}</p>',
            '<div class="charts"></div>',
            "" if plan.curve is None else curve_html(plan.curve),
            _details("Arenas", _arena_table(plan), shown=True),
            _details("Held at eager's peak beyond the last use", _holding_table(plan), shown=True),
            _details(f"The largest buffers (of {len(plan.buffers)})", _buffer_table(plan), shown=True),
            _details(f"Slots (of {len(plan.slots)})", _slot_table(plan), shown=False),
            _details("The ring's blocks", _block_table(plan), shown=False),
            "</section>",
        )
    )


def figures_html(plans: Sequence[ReportContents]) -> str:
    """The figures of each plan; of two, with what the second has more."""
    heads = ("", *(text_html(plan.title) for plan in plans))
    figures = [plan.figures for plan in plans]
    rows: list[Row] = [
        ("model", *(text_html(f.model) for f in figures)),
        ("planned for", *(text_html(f"{f.mode} on {f.target or '?'}, preset {f.preset}") for f in figures)),
        *_notes_of_eager(plans),
        ("ops, buffers", *(f"{f.ops}, {f.buffers}" for f in figures)),
    ]
    sizes = [_figure_sizes(plan) for plan in plans]
    labels = [label for label in sizes[0] if any(size[label] is not None for size in sizes)]
    rows += [(label, *(_size_html(size[label]) for size in sizes)) for label in labels]
    if len(plans) != 2:
        return _table(heads, rows, "figures")
    growth = [_growth(*(size[label] for size in sizes)) for label in labels]
    blank = ("",) * (len(rows) - len(labels))
    full = [(*row, more) for row, more in zip(rows, (*blank, *growth), strict=True)]
    return _table((*heads, "difference"), full, "figures")


def _notes_of_eager(plans: Sequence[ReportContents]) -> Iterator[tuple[str, ...]]:
    """What is beside the figures of a run as it is, where any plan has it."""
    runs = [plan.eager.figures if plan.eager else None for plan in plans]
    if any(run and run.host_bytes for run in runs):
        yield "run as it is, on the host", *(_size_html(run.host_bytes if run else None) for run in runs)
    if any(run and run.in_parts for run in runs):
        yield (
            "one kernel in a run, traced in parts",
            *(text_html(", ".join(run.in_parts) if run else "") for run in runs),
        )


def text_html(text: str) -> str:
    """``text`` as HTML, its direction kept to itself."""
    return f"<bdi>{plain_html(text)}</bdi>" if text else ""


def plain_html(text: str) -> str:
    """``text`` escaped; what HTML cannot hold is U+FFFD."""
    return escape(_UNWRITABLE.sub("\ufffd", text))


def _figure_sizes(plan: ReportContents) -> dict[str, int | None]:
    f: ReportFigures = plan.figures
    eager = plan.eager.figures if plan.eager else None
    return {
        "run as it is, total": eager.total_bytes if eager else None,
        "run as it is, stack": eager.stack_bytes if eager else None,
        "torch's allocator reserves (a model)": eager.reserved_bytes if eager else None,
        "planned, total": f.total,
        "planned, stack": f.stack,
        "bound of the stack": f.bound,
        "weights (text)": f.text,
        "state (data)": f.data,
        "inputs (the caller's)": f.inputs,
    }


def _size_html(size: int | None) -> str:
    return "not known" if size is None else f'<span title="{size} B">{readable_size(size)}</span>'


def _growth(first: int | None, second: int | None) -> str:
    if first is None or second is None:
        return ""
    more = second - first
    return f'<span title="{more} B">{"+" if more > 0 else ""}{readable_size(more)}</span>'


def _summary(plan: ReportContents) -> str:
    f = plan.figures
    named = "" if plan.positions.op or not f.ops else ". The graph was not there: no names, operators or inputs"
    return f"{f.ops} ops, {f.buffers} buffers; graph {f.ir_hash[:16]}…, plan {f.digest[:16]}…{named}"


def _details(title: str, table: str, *, shown: bool) -> str:
    if not table:
        return ""
    return f"<details{' open' if shown else ''}><summary>{title}</summary>\n{table}\n</details>"


def _table(heads: Row, rows: Iterable[Row], kind: str) -> str:
    head = "".join(f'<th scope="col">{cell}</th>' for cell in heads)
    lines = (f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows)
    body = "\n".join(lines)
    table = f'<table class="{kind}">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _arena_table(plan: ReportContents) -> str:
    a = plan.arenas
    rows = (
        (
            text_html(a.name[i]),
            a.segment[i],
            a.layout[i],
            _size_html(a.peak[i]),
            _size_html(a.bound[i]),
            "yes" if a.proven[i] else "no",
            str(a.slots[i]),
            _size_html(a.capacity[i]) if a.capacity[i] else "no limit",
        )
        for i in range(len(a))
    )
    return _table(("arena", "segment", "layout", "peak", "bound", "proven", "slots", "capacity"), rows, "arenas")


def _holding_table(plan: ReportContents) -> str:
    if plan.eager is None or not plan.eager.figures.holdings:
        return ""
    rows = (
        (text_html(row.holder), _size_html(row.bytes), str(row.storages), text_html(row.source))
        for row in plan.eager.figures.holdings
    )
    return _table(("holder", "bytes", "tensors", "most of it made at"), rows, "holdings")


def _buffer_table(plan: ReportContents) -> str:
    rows = sorted(range(len(plan.buffers)), key=lambda row: (-plan.buffers[row].bytes, plan.buffers[row].id))
    heads = ("buffer", "bytes", "name", "role", "value", "span", "offset", "address", "made by", "module", "source")
    return _table(heads, (_buffer_cells(plan, plan.buffers[row], row) for row in rows[:LISTED_BUFFERS]), "buffers")


def _buffer_cells(plan: ReportContents, row: MapBuffer, index: int) -> Row:
    address = f"0x{plan.slots.address[row.slot_row]:016x}" if row.slot_row >= 0 else ""
    return (
        f'<button type="button" class="open" data-row="{index}">{row.id}</button>',
        _size_html(row.bytes),
        text_html(row.name),
        text_html(row.role),
        text_html(row.windows[0] if row.windows else ""),
        f"[{row.birth}, {row.death})",
        str(row.offset),
        address,
        text_html(row.op),
        text_html(row.module),
        text_html(row.source),
    )


def _slot_table(plan: ReportContents) -> str:
    slots, names = plan.slots, plan.arenas.name
    order = sorted(range(len(slots)), key=lambda row: (-slots.bytes[row], row))[:LISTED_SLOTS]
    counts: dict[int, int] = {}
    for buffer in plan.buffers:
        counts[buffer.slot_row] = counts.get(buffer.slot_row, 0) + 1
    rows = (
        (
            text_html(f"{names[slots.arena[row]]}.{slots.slot[row]}"),
            _size_html(slots.bytes[row]),
            f"0x{slots.address[row]:016x}",
            str(counts.get(row, 0)),
        )
        for row in order
    )
    return _table(("slot", "most bytes", "address", "buffers"), rows, "slots")


def _block_table(plan: ReportContents) -> str:
    if plan.ring is None:
        return ""
    rows = (
        (text_html(block.name), _size_html(block.bytes), str(block.address), "yes" if block.resident else "no")
        for block in plan.ring.blocks
    )
    return _table(("block", "bytes", "address on the device", "resident"), rows, "blocks")
