"""Updates right after their gradients: an optimizer's lists in groups of parameters, each run as soon as it can.

An optimizer on lists reads all gradients, so that all are live at once. In groups each gradient goes after its own
update. Parameters that are smaller than ``smallest`` share a group with their neighbours, as a group is an op of each
list operator. Nothing else changes its place, and where something reads all gradients (clipping by norm, a scaler's
look for infinities) the updates wait for it. O(size of the graph, times the log of its ops).
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.ir.call_text import LIST, TENSOR, CallText, decode_call, tag_count
from tmmu.ir.graph import Graph, OpCalls
from tmmu.ir.ids import BufferId, OpId
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import SAME, SUBLIST, Part, Rewrite
from tmmu.planner.order import dependence_edges

LIST_PREFIXES: Final = ("aten._foreach_", "aten._fused_adam", "aten._fused_sgd")
"""Of operators that do to each entry of their lists what they do to a list of it alone."""
SMALLEST_GROUP: Final = 1 << 20
"""Bytes of the largest tensors of a group's entries, below which the next entry joins it."""
LARGE_ENTRY: Final = 64
"""So many times the smallest group, an entry waits for no gradient of another."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One op of the rewritten graph, before it is moved."""

    origin: OpId
    kind: str
    part: Part


def early_updates(base: Graph, *, smallest: int = SMALLEST_GROUP) -> Rewrite:
    """The rewrite; one that changes nothing for a graph whose updates are on no lists. ``base`` has calls."""
    rows = list(_rows(base, smallest))
    return _rewrite(base, [rows[place] for place in _moved(rebuild_graph(base, _rewrite(base, rows)), rows)])


def _rewrite(base: Graph, rows: Sequence[_Row]) -> Rewrite:
    return Rewrite(
        base_hash=base.ir_hash,
        origin=tuple(row.origin for row in rows),
        kind=tuple(row.kind for row in rows),
        part=tuple(row.part for row in rows),
    )


def _rows(base: Graph, smallest: int) -> Iterator[_Row]:
    """Ops in the base's order, lists in groups."""
    lists = {op: entries for op in base.ops.ids if len(entries := _entry_buffers(base, op)) > 1}
    sizes = _entry_bytes(base, list(lists.values()))
    for op in base.ops.ids:
        if op in lists:
            yield from (_Row(op, SUBLIST, part) for part in _groups(sizes[len(lists[op])], smallest))
        else:
            yield _Row(op, SAME, ())


def _entry_buffers(base: Graph, op: OpId) -> list[list[BufferId]]:
    """Per entry of the lists of an update, the buffers of its operands; empty for what cannot be cut."""
    calls, ops, buffer_of = base.calls, base.ops, base.values.buffer
    assert calls is not None
    if ops.stage[op] != "update" or not ops.target[op].startswith(LIST_PREFIXES):
        return []
    text = decode_call(calls.texts[calls.call[op]])
    places = [] if text is None else _entry_places(text)
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
    """Ranges of entries, each of at least ``smallest`` bytes but for the last, and those before a large entry."""
    ranges, low, total = list[tuple[int, int]](), 0, 0
    for index, size in enumerate(sizes):
        if size >= LARGE_ENTRY * smallest and low < index:
            ranges.append((low, index))
            low, total = index, 0
        total += size
        if total >= smallest:
            ranges.append((low, index + 1))
            low, total = index + 1, 0
    return [*ranges, (low, len(sizes))] if low < len(sizes) else ranges


def _moved(graph: Graph, rows: Sequence[_Row]) -> Iterator[int]:
    """Rows in the order in which they run: a group as soon as it can, all else as it was."""
    successors = dependence_edges(graph, graph.ops.ids)
    waits = [0] * len(rows)
    for row in successors:
        for successor in row:
            waits[successor] += 1
    ready = [(rows[op].kind == SAME, op) for op in range(len(rows)) if not waits[op]]
    heapq.heapify(ready)
    while ready:
        _, op = heapq.heappop(ready)
        yield op
        for successor in successors[op]:
            waits[successor] -= 1
            if not waits[successor]:
                heapq.heappush(ready, (rows[successor].kind == SAME, successor))
