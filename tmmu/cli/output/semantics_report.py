"""What a graph computes, for people and as (op, semantics, lifecycle) for programs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING

from tmmu.cli.output.render import size
from tmmu.codec.printable import align_columns
from tmmu.ir.graph import Graph

if TYPE_CHECKING:
    from tmmu.passes.semantics.view import OpSemantics, SemanticView

UNITS = ("", "k", "M", "G", "T", "P", "E")


def semantics_record(graph: Graph, view: "SemanticView") -> dict[str, object]:
    """The JSON value of ``semantics``; ops are named by their ids in the graph, rows are in the plan's order."""
    return {
        "workload": asdict(view.workload),
        "balance": float(view.balance),
        "bytes": sum(row.bytes for row in view.ops),
        "flops": sum(row.flops for row in view.ops),
        "critical_path": {"bytes": view.path.cost, "ops": view.path.ops},
        "critical_path_by_flops": {"flops": view.path_flops.cost, "ops": view.path_flops.ops},
        "together": [asdict(group) for group in view.groups],
        "ops": [
            {"op": _op_record(graph, row), "semantics": _semantics_of(row), "lifecycle": [asdict(x) for x in lifecycle]}
            for row, lifecycle in zip(view.ops, view.lifecycles, strict=True)
        ],
        "edges": [asdict(edge) for edge in view.edges],
    }


def _op_record(graph: Graph, row: "OpSemantics") -> dict[str, object]:
    notes, op = graph.notes.ops, row.op
    return {
        "id": op,
        "position": row.position,
        "target": graph.ops.target[op],
        "stage": graph.ops.stage[op],
        "module": notes.module[op],
        "source": notes.source[op],
    }


def _semantics_of(row: "OpSemantics") -> dict[str, object]:
    fields = {name: content for name, content in asdict(row).items() if name not in {"op", "position"}}
    return fields | {"flop_per_byte": round(row.flops / row.bytes, 3) if row.bytes else None}


def semantics_lines(graph: Graph, view: "SemanticView") -> list[str]:
    """The class of the workload, sums by label, the critical path, groups, and a line for each op."""
    return [
        *_headline(view),
        "",
        *_label_table(view),
        "",
        *_path_lines(view),
        *_group_lines(view),
        "",
        *_op_table(graph, view),
    ]


def _headline(view: "SemanticView") -> list[str]:
    work = view.workload
    counts = (
        (work.attentions, "attention"),
        (work.cross_attentions, "cross-attention"),
        (work.caches, "cache buffer"),
        (work.convolution_stages, "convolution stage"),
    )
    parts = [f"{number} {word}{'s' if number > 1 else ''}" for number, word in counts if number]
    title = f"{work.architecture.replace('_', '-')}, {work.modality}: {', '.join(work.phases)}"
    return [f"{title}; {', '.join(parts)}" if parts else title]


def _label_table(view: "SemanticView") -> list[str]:
    """One line per (phase, modality, pattern), most bytes first, and the sum."""
    rows: dict[tuple[str, str, str], list[OpSemantics]] = defaultdict(list)
    for row in view.ops:
        rows[row.phase, row.modality, row.pattern].append(row)
    ordered = sorted(rows, key=lambda label: (-sum(row.bytes for row in rows[label]), label))
    lines = [(*label, *_sums(rows[label], view.balance)) for label in ordered]
    heading = ("phase", "modality", "pattern", "ops", "bytes", "FLOPs", "FLOP/byte", "bound")
    return align_columns("<<<>>>><", heading, [*lines, ("all", "", "", *_sums(view.ops, view.balance))])


def _sums(rows: "Sequence[OpSemantics]", balance: Fraction) -> tuple[str, ...]:
    flops, touched = sum(row.flops for row in rows), sum(row.bytes for row in rows)
    bound = "compute" if flops and flops >= balance * touched else "memory"
    return (str(len(rows)), size(touched), readable_count(flops), _intensity(flops, touched), bound)


def _path_lines(view: "SemanticView") -> list[str]:
    touched, flops = sum(row.bytes for row in view.ops), sum(row.flops for row in view.ops)
    bound = sum(row.bound == "compute" for row in view.ops)
    by_bytes = f"{len(view.path.ops)} of {len(view.ops)} ops, {size(view.path.cost)} of {size(touched)}"
    by_flops = (
        f"{len(view.path_flops.ops)} ops, {readable_count(view.path_flops.cost)} of {readable_count(flops)} FLOPs"
    )
    return [
        f"compute-bound from {float(view.balance):g} FLOP/byte on: {bound} of {len(view.ops)} ops",
        f"critical path: {by_bytes}; by FLOPs {by_flops}",
    ]


def _group_lines(view: "SemanticView") -> list[str]:
    """How many groups must lie together, by kind."""
    lines = []
    for kind, text in (("takeover", "one place in turn"), ("cache", "caches, with the ops that touch them")):
        groups = [group for group in view.groups if group.kind == kind]
        if groups:
            buffers, total = sum(len(group.buffers) for group in groups), sum(group.bytes for group in groups)
            lines.append(f"together: {buffers} buffers in {len(groups)} groups of {text}, {size(total)}")
    return lines


def _op_table(graph: Graph, view: "SemanticView") -> list[str]:
    heading = (
        "position",
        "operator",
        "pattern",
        "phase",
        "bytes",
        "FLOPs",
        "FLOP/byte",
        "bound",
        "critical",
        "together",
    )
    rows = [
        (
            str(row.position),
            graph.ops.target[row.op],
            row.pattern + (f" {row.number}" if row.number >= 0 else ""),
            row.phase,
            size(row.bytes),
            readable_count(row.flops),
            _intensity(row.flops, row.bytes),
            row.bound,
            "yes" if row.critical else "",
            str(row.together) if row.together >= 0 else "",
        )
        for row in view.ops
    ]
    return align_columns("><<<>>><<>", heading, rows)


def readable_count(number: int) -> str:
    """A count with three digits and a prefix of thousands: ``1.81 G``."""
    power, rest = 0, number
    while rest >= 1000 and power < len(UNITS) - 1:
        power, rest = power + 1, rest // 1000
    return f"{number / 1000**power:.4g} {UNITS[power]}".rstrip()


def _intensity(flops: int, touched: int) -> str:
    return f"{flops / touched:.1f}" if touched else ""
