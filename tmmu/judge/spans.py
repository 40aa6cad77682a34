"""What the design page says about time: which buffers a plan places, their spans, who may take over whom."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tmmu.ir.graph import INPUT, PERSISTENT_ROLES, Graph
from tmmu.ir.windows import same_window, writers


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Per buffer of the graph, ``[birth, death)``; ``placed`` are the buffers that a plan must place, by id.

    ``kept`` are those that outlive the last op because a caller or a gradient reads them later.
    """

    timeline: int
    birth: tuple[int, ...]
    death: tuple[int, ...]
    placed: tuple[int, ...]
    kept: frozenset[int]


def ops_of_mode(graph: Graph, mode: str) -> list[int]:
    """The ops that a plan of this mode runs, by id."""
    return [op for op, stage in enumerate(graph.ops.stage) if mode == "backward" or stage == "forward"]


def mirrors(graph: Graph, mode: str) -> bool:
    """Whether the gradient of each op is a position of a second half of the timeline."""
    return mode == "backward" and "backward" not in graph.ops.stage


def retained(graph: Graph, order: Sequence[int], mode: str, preset: str) -> list[tuple[int, int]]:
    """(position, value) of what ops keep for their gradient and no other op of the order reads for it."""
    if mode == "inference" or (mode == "backward" and not mirrors(graph, mode)):
        return []
    again, writer = graph.ops.recompute, writers(graph)
    return [
        (t, value)
        for t, op in enumerate(order)
        for value in graph.ops.saves[op]
        if preset != "remat_enabled" or writer[value] < 0 or not again[writer[value]]
    ]


def spans(graph: Graph, order: Sequence[int], mode: str, preset: str) -> Spans:
    """Spans by definition (R2, R6). A buffer that the order never touches has the empty span ``[0, 0)``."""
    steps, mirrored = len(order), mirrors(graph, mode)
    timeline = 2 * steps if mirrored else steps
    born, dead = _touches(graph, order)
    home, writer, runs = graph.values.buffer, writers(graph), set(order)
    needed = [(home[value], steps) for value in graph.outputs if writer[value] in runs]
    for t, value in retained(graph, order, mode, preset):
        needed.append((home[value], 2 * steps - t if mirrored else steps))
    for buffer, end in needed:
        dead[buffer] = max(dead[buffer], end)
    placed = []
    for buffer, role in zip(graph.buffers.ids, graph.buffers.role, strict=True):
        if role in PERSISTENT_ROLES:
            born[buffer], dead[buffer] = 0, timeline
        if role != INPUT and born[buffer] >= 0:
            placed.append(buffer)
    kept = frozenset(buffer for buffer, _ in needed)
    return Spans(timeline=timeline, birth=tuple(born), death=tuple(dead), placed=tuple(placed), kept=kept)


def _touches(graph: Graph, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Per buffer: first write or -1, and one past the last read or write or 0."""
    home = graph.values.buffer
    born, dead = [-1] * len(graph.buffers), [0] * len(graph.buffers)
    for t, op in enumerate(order):
        for value in graph.ops.writes[op]:
            if born[home[value]] < 0:
                born[home[value]] = t
            dead[home[value]] = t + 1
        for value in graph.ops.reads[op]:
            dead[home[value]] = t + 1
    return born, dead


def objections(graph: Graph, found: Spans, op: int, t: int, pair: tuple[int, int]) -> Iterator[str]:
    """Why ``op``, run at ``t``, may not compute buffer ``pair[0]`` in the place of buffer ``pair[1]`` (R3)."""
    written, read = pair
    home, size, role = graph.values.buffer, graph.buffers.bytes, graph.buffers.role
    if found.birth[written] != t:
        yield f"buffer {written} is not born there"
    if found.death[read] != t + 1:
        yield f"buffer {read} lives on to {found.death[read]}"
    if read in found.kept:
        yield f"buffer {read} is read after the last op"
    if role[read] in PERSISTENT_ROLES or role[written] in PERSISTENT_ROLES:
        yield "one of them persists"
    if size[written] != size[read]:
        yield "their sizes differ"
    listed = [r for w, r in graph.ops.overwrites[op] if (home[w], home[r]) == pair]
    if not listed:
        yield "the op lists no such pair"
    if any(home[value] == read for value in graph.ops.writes[op]):
        yield f"the op changes buffer {read}"
    seen = [value for value in graph.ops.reads[op] if home[value] == read]
    if listed and not all(same_window(graph, value, listed[0]) for value in seen):
        yield f"the op also reads another window of buffer {read}"
