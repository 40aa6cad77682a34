"""Updates right after their gradients: an optimizer's lists in groups of parameters, each run as soon as it can.

An optimizer on lists reads all gradients, so that all are live at once. In groups each gradient goes after its own
update. Parameters that are smaller than ``smallest`` share a group with their neighbours, as a group is an op of each
list operator. Nothing else changes its place, and where something reads all gradients (clipping by norm, a scaler's
look for infinities) the updates wait for it. O(size of the graph, times the log of its ops).
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from tmmu.ir.call_text import LIST, TENSOR, CallText, decode_call, tag_count
from tmmu.ir.graph import GRADIENT, ONCE, Graph, OpCalls
from tmmu.ir.ids import BufferId, OpId
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import SAME, SUBLIST, Part, Rewrite, identity_rewrite
from tmmu.judge.rewrite.facts import LIST_OPERATORS
from tmmu.planner.order import dependence_edges

SMALLEST_GROUP: Final = 1 << 20
"""Bytes of the largest tensors of a group's entries, below which the next entry joins it."""
LARGE_ENTRY: Final = 64
"""So many times the smallest group, an entry waits for no gradient of another."""


def early_updates(base: Graph, first: Rewrite | None = None, *, smallest: int = SMALLEST_GROUP) -> Rewrite:
    """What ``first`` (default: nothing) makes of ``base``, which has calls, with early updates.

    It changes nothing more where updates are on no lists.
    """
    grouped = grouped_updates(base, first or identity_rewrite(base), smallest=smallest)
    graph = rebuild_graph(base, grouped)
    order = early_order(grouped, dependence_edges(graph, graph.ops.ids))
    return replace(
        grouped,
        origin=tuple(grouped.origin[row] for row in order),
        kind=tuple(grouped.kind[row] for row in order),
        part=tuple(grouped.part[row] for row in order),
    )


def gradient_readers(base: Graph) -> tuple[OpId, ...]:
    """The ops that keep updates behind all gradients: of each kind the first that reads the last one made, such as a
    norm of all. ``base`` has calls. O(size of the graph, times the lists of its updates).
    """
    rows = grouped_updates(base, identity_rewrite(base), smallest=1)
    graph = rebuild_graph(base, rows)
    after = [list(row) for row in dependence_edges(graph, graph.ops.ids)]
    before: list[list[int]] = [[] for _ in after]
    for place, successors in enumerate(after):
        for successor in successors:
            before[successor].append(place)
    lists: dict[OpId, list[int]] = {}
    for place, (kind, origin) in enumerate(zip(rows.kind, rows.origin, strict=True)):
        if kind == SUBLIST:
            lists.setdefault(origin, []).append(place)
    found = [_first_reader(graph, rows, _reached(before, parts), parts, after) for parts in lists.values()]
    return tuple(sorted({rows.origin[place] for place in found if place is not None}))


def _first_reader(
    graph: Graph, rows: Rewrite, above: set[int], parts: Sequence[int], after: Sequence[Sequence[int]]
) -> int | None:
    """The first row between the last gradient that a list hangs on and all of its parts; ``None`` where a part does
    without that gradient.
    """
    gradients = [row for row in above if graph.ops.stage[row] == "backward" and _makes_gradient(graph, row)]
    below = _reached(after, [max(gradients)]) if gradients else set[int]()
    between = (row for row in below & above if rows.kind[row] == SAME and graph.ops.stage[row] != "backward")
    return min(between, default=None) if below.issuperset(parts) else None


def _makes_gradient(graph: Graph, row: int) -> bool:
    return any(graph.buffers.role[graph.values.buffer[value]] == GRADIENT for value in graph.ops.writes[row])


def _reached(edges: Sequence[Sequence[int]], starts: Sequence[int]) -> set[int]:
    """The rows that edges lead to, the starts too."""
    found, pending = set(starts), [*starts]
    while pending:
        fresh = [row for row in edges[pending.pop()] if row not in found]
        found.update(fresh)
        pending += fresh
    return found


def grouped_updates(base: Graph, rewrite: Rewrite, *, smallest: int = SMALLEST_GROUP) -> Rewrite:
    """The rewrite of ``base`` with lists in groups where they run whole; ops stay where they are."""
    lists = {op: entries for op in base.ops.ids if len(entries := _entry_buffers(base, op)) > 1}
    sizes = _entry_bytes(base, list(lists.values()))
    parts = {op: _groups(sizes[len(entries)], smallest) for op, entries in lists.items()}
    origin, kind, part = list[OpId](), list[str](), list[Part]()
    for row in zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True):
        groups = parts.get(row[0]) if row[1] == SAME else None
        for each in [row] if groups is None else [(row[0], SUBLIST, group) for group in groups]:
            origin.append(each[0])
            kind.append(each[1])
            part.append(each[2])
    return replace(rewrite, origin=tuple(origin), kind=tuple(kind), part=tuple(part))


def early_order(rewrite: Rewrite, after: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Rows in the order in which they run: a group as soon as it can, all else as it was. ``after``: edges."""
    waits = [0] * len(rewrite)
    for later in chain(*after):
        waits[later] += 1
    waits_its_turn = [kind != SUBLIST for kind in rewrite.kind]
    ready, order = [(waits_its_turn[row], row) for row in range(len(rewrite)) if not waits[row]], list[int]()
    heapq.heapify(ready)
    while ready:
        _, row = heapq.heappop(ready)
        order.append(row)
        for later in after[row]:
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, (waits_its_turn[later], later))
    return tuple(order)


def _entry_buffers(base: Graph, op: OpId) -> list[list[BufferId]]:
    """Per entry of the lists of an update, the buffers of its operands; empty for what cannot be cut."""
    calls, ops, buffer_of = base.calls, base.ops, base.values.buffer
    assert calls is not None
    if ops.stage[op] != "update" or calls.effect[op] == ONCE:
        return []
    text = decode_call(calls.texts[calls.call[op]])
    places = _entry_places(text) if text is not None and text.operator in LIST_OPERATORS else []
    entries = [[buffer_of[calls.operands[op][place]] for place in entry] for entry in places]
    return entries if _is_apart(base, op, calls, entries) else []


def _is_apart(base: Graph, op: OpId, calls: OpCalls, entries: Sequence[Sequence[BufferId]]) -> bool:
    """Whether each buffer that the op changes belongs to one entry, and it changes no other."""
    buffer_of = base.values.buffer
    owner = {buffer: index for index, entry in enumerate(entries) for buffer in entry}
    changed = {buffer_of[value] for value in base.ops.writes[op]}
    shared = [buffer for index, entry in enumerate(entries) for buffer in set(entry) if owner[buffer] != index]
    listed = {buffer for entry in entries for buffer in entry}
    whole = {buffer_of[value] for value in calls.operands[op]} - listed
    return changed <= listed and not changed & set(shared) and not changed & whole


def _entry_places(text: CallText) -> list[list[int]]:
    """Per entry, the places of its tensors among the operands; empty where the lists are not of one length."""
    place, lists = 0, list[list[list[int]]]()
    for argument in text.arguments:
        if isinstance(argument, list) and argument[:1] == [LIST] and len(argument) > 1:
            entries = []
            for entry in argument[1:]:
                count = tag_count(entry, TENSOR)
                entries.append([*range(place, place + count)])
                place += count
            lists.append(entries)
        else:
            place += tag_count(argument, TENSOR)
    if any(text.results):
        lists.append([[place + index] for index in range(len(text.results))] if all(text.results) else [])
    if not lists or len({len(entries) for entries in lists}) > 1:
        return []
    return [[*(place for entries in lists for place in entries[index])] for index in range(len(lists[0]))]


def _entry_bytes(base: Graph, lists: Sequence[Sequence[Sequence[BufferId]]]) -> dict[int, list[int]]:
    """By length of lists, the largest tensor of each entry: lists of one length are cut alike."""
    found: dict[int, list[int]] = {}
    for entries in lists:
        sizes = found.setdefault(len(entries), [0] * len(entries))
        for index, entry in enumerate(entries):
            sizes[index] = max(sizes[index], *(base.buffers.bytes[buffer] for buffer in entry))
    return found


def _groups(sizes: Sequence[int], smallest: int) -> list[tuple[int, int]]:
    """Ranges of entries: each large one with the small ones after it, such as a bias, or small ones by themselves.

    Small ones are less than ``smallest`` bytes, and no more than that together until the last of them.
    """
    ranges, low, small = list[tuple[int, int]](), 0, 0
    for index, size in enumerate(sizes):
        is_after_largest = index > low and sizes[index - 1] >= LARGE_ENTRY * smallest
        if index > low and (size >= smallest or small >= smallest or is_after_largest):
            ranges.append((low, index))
            low, small = index, 0
        small += size if size < smallest else 0
    return [*ranges, (low, len(sizes))]
