"""What must lie together: buffers that share bytes by takeovers, and the caches of an attention, with the ops on them.

Windows of one buffer lie together by themselves. Groups are joined by union-find, nearly linear.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.passes.semantics.attentions import Attention

TAKEOVER: Final = "takeover"
CACHE: Final = "cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Buffers, at least two, and the ops that read or write one of them.

    ``kind``: ``takeover`` where they are one place in turn, of ``bytes``; ``cache`` where they are what the attentions
    keep, with ``bytes`` in all.
    """

    kind: str
    buffers: tuple[int, ...]
    bytes: int
    ops: tuple[int, ...]


def find_groups(graph: Graph, plan: Plan, attentions: Sequence[Attention]) -> tuple[Group, ...]:
    """The groups of a planned graph, by their first buffer."""
    taken = zip(plan.buffers.id, plan.buffers.takes_over, strict=True)
    takeovers = _joined((buffer, other) for buffer, other in taken if buffer != other)
    caches = _joined((a.cache[0], buffer) for a in attentions for buffer in a.cache[1:])
    touching = _ops_by_buffer(graph, plan, {buffer for group in (*takeovers, *caches) for buffer in group})
    size: Sequence[int] = graph.buffers.bytes
    rows = [(TAKEOVER, group, max(size[b] for b in group)) for group in takeovers]
    rows += [(CACHE, group, sum(size[b] for b in group)) for group in caches]
    return tuple(
        Group(kind=kind, buffers=tuple(group), bytes=total, ops=_ordered(touching[b] for b in group))
        for kind, group, total in sorted(rows, key=lambda row: row[1])
    )


def _joined(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The classes of the pairs, each ascending, in order of their least member."""
    parent: dict[int, int] = {}

    def root_of(member: int) -> int:
        parent.setdefault(member, member)
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for one, two in pairs:
        low, high = sorted((root_of(one), root_of(two)))
        parent[high] = low
    classes: dict[int, list[int]] = defaultdict(list)
    for member in sorted(parent):
        classes[root_of(member)].append(member)
    return list(classes.values())


def _ops_by_buffer(graph: Graph, plan: Plan, buffers: set[int]) -> dict[int, list[int]]:
    touching: dict[int, list[int]] = defaultdict(list)
    for op in plan.order:
        values = (*graph.ops.reads[op], *graph.ops.writes[op])
        for buffer in dict.fromkeys(graph.values.buffer[value] for value in values):
            if buffer in buffers:
                touching[buffer].append(op)
    return touching


def _ordered(columns: Iterable[list[int]]) -> tuple[int, ...]:
    return tuple(sorted({op for column in columns for op in column}))
