"""Spans by definition (docs/spec/liveness.md): which buffers a plan places, when they live, who may take over whom.

This is the judge's own reading of R2, R3 and R6, written apart from the planner's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tmmu.ir.graph import PERSISTENT_ROLES, UNPLACED_ROLES, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.windows import same_window, writers


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Per buffer of the graph, ``[birth, death)`` in positions; ``placed`` are the buffers that a plan places, by id.

    ``live_out`` are those that the caller or a gradient reads after the last op of the order.
    """

    timeline: int
    birth: tuple[int, ...]
    death: tuple[int, ...]
    placed: tuple[BufferId, ...]
    live_out: frozenset[BufferId]


def ops_of_mode(graph: Graph, mode: str) -> list[OpId]:
    """The ops that a plan of this mode runs, by id."""
    ops = zip(graph.ops.ids, graph.ops.stage, strict=True)
    return [op for op, stage in ops if mode == "backward" or stage == "forward"]


def is_mirrored(graph: Graph, mode: str) -> bool:
    """Whether the timeline has a second half, in which the gradient of the op at t is at 2T - 1 - t."""
    return mode == "backward" and "backward" not in graph.ops.stage


def saved_values(graph: Graph, order: Sequence[OpId], mode: str, preset: str) -> list[tuple[int, ValueId]]:
    """(position, value) of what ops save for a gradient that is none of the order's ops."""
    if mode == "inference" or (mode == "backward" and not is_mirrored(graph, mode)):
        return []
    recompute, writer = graph.ops.recompute, writers(graph)
    return [
        (t, value)
        for t, op in enumerate(order)
        for value in graph.ops.saves[op]
        if preset != "remat_enabled" or writer[value] < 0 or not recompute[writer[value]]
    ]


def spans(graph: Graph, order: Sequence[OpId], mode: str, preset: str) -> Spans:
    """The spans of R2 and R6. A buffer that the order never touches has the empty span ``[0, 0)``."""
    steps, mirrored = len(order), is_mirrored(graph, mode)
    timeline = 2 * steps if mirrored else steps
    birth, death = _touch_times(graph, order)
    buffer_of, writer, runs = graph.values.buffer, writers(graph), set(order)
    needed = [(buffer_of[value], steps) for value in graph.outputs if writer[value] in runs]
    for t, value in saved_values(graph, order, mode, preset):
        needed.append((buffer_of[value], 2 * steps - t if mirrored else steps))
    for buffer, end in needed:
        death[buffer] = max(death[buffer], end)
    placed = []
    for buffer, role in zip(graph.buffers.ids, graph.buffers.role, strict=True):
        if role in PERSISTENT_ROLES:
            birth[buffer], death[buffer] = 0, timeline
        if role not in UNPLACED_ROLES and birth[buffer] >= 0:
            placed.append(buffer)
    out = frozenset(buffer for buffer, _ in needed)
    return Spans(timeline=timeline, birth=tuple(birth), death=tuple(death), placed=tuple(placed), live_out=out)


def _touch_times(graph: Graph, order: Sequence[OpId]) -> tuple[list[int], list[int]]:
    """Per buffer, the position of its first write or -1, and one past that of its last read or write or 0."""
    buffer_of = graph.values.buffer
    first, end = [-1] * len(graph.buffers), [0] * len(graph.buffers)
    for t, op in enumerate(order):
        for value in graph.ops.writes[op]:
            if first[buffer_of[value]] < 0:
                first[buffer_of[value]] = t
            end[buffer_of[value]] = t + 1
        for value in graph.ops.reads[op]:
            end[buffer_of[value]] = t + 1
    return first, end


def takeover_objections(graph: Graph, spans: Spans, op: OpId, t: int, pair: tuple[BufferId, BufferId]) -> Iterator[str]:
    """Why ``op``, run at ``t``, may not compute the first buffer of ``pair`` in the bytes of the second (R3)."""
    written, read = pair
    buffer_of, size, role = graph.values.buffer, graph.buffers.bytes, graph.buffers.role
    if spans.birth[written] != t:
        yield f"buffer {written} is not born there"
    if spans.death[read] != t + 1:
        yield f"buffer {read} lives on to {spans.death[read]}"
    # Death at T does not say so: everything alive at the end dies there, read afterwards or not.
    if read in spans.live_out:
        yield f"buffer {read} is read after the last op"
    if role[read] in PERSISTENT_ROLES or role[written] in PERSISTENT_ROLES:
        yield "one of them persists"
    if size[written] != size[read]:
        yield "their sizes differ"
    listed = [r for w, r in graph.ops.overwrites[op] if (buffer_of[w], buffer_of[r]) == pair]
    if not listed:
        yield "the op lists no such pair"
    if any(buffer_of[value] == read for value in graph.ops.writes[op]):
        yield f"the op changes buffer {read}"
    windows_of_read = [value for value in graph.ops.reads[op] if buffer_of[value] == read]
    if listed and not all(same_window(graph, value, listed[0]) for value in windows_of_read):
        yield f"the op also reads another window of buffer {read}"
