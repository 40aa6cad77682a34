"""The rewrite of a schedule: the rows of a rewrite in another order, some of them again."""

from collections.abc import Iterable
from dataclasses import replace

from tmmu.ir.call_text import decode_call
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.rewrite import RERUN, TWIN, Rewrite
from tmmu.judge.rewrite.facts import computes_alone


def rematerialize(rewrite: Rewrite, graph: Graph, schedule: Iterable[tuple[int, bool]]) -> Rewrite:
    """``graph`` is what ``rewrite`` makes; ``schedule``: its rows, and whether they run again.

    What changes what persists, or draws, runs again as its twin.
    """
    origin, kind, part = [], [], []
    persists = [role in PERSISTENT_ROLES for role in graph.buffers.role]
    draws = _rows_that_draw(graph)
    for row, again in schedule:
        changes = again and any(persists[graph.values.buffer[value]] for value in graph.ops.writes[row])
        origin.append(rewrite.origin[row])
        kind.append((TWIN if changes or draws[row] else RERUN) if again else rewrite.kind[row])
        part.append(() if again else rewrite.part[row])
    return replace(rewrite, origin=tuple(origin), kind=tuple(kind), part=tuple(part))


def _rows_that_draw(graph: Graph) -> list[bool]:
    """Per row, whether it does more than compute from its arguments."""
    assert graph.calls is not None
    texts = [decode_call(text) for text in graph.calls.texts]
    draws = [text is not None and not computes_alone(text) for text in texts]
    return [draws[text] for text in graph.calls.call]
