"""The rewrite of a schedule: the rows of a rewrite in another order, some of them again."""

from collections.abc import Iterable
from dataclasses import replace

from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.rewrite import RERUN, TWIN, Rewrite


def rematerialize(rewrite: Rewrite, graph: Graph, schedule: Iterable[tuple[int, bool]]) -> Rewrite:
    """``graph`` is what ``rewrite`` makes; ``schedule``: its rows, and whether they run again.

    What changes what persists runs again as its twin.
    """
    origin, kind, part = [], [], []
    persists = [role in PERSISTENT_ROLES for role in graph.buffers.role]
    for row, again in schedule:
        changes = again and any(persists[graph.values.buffer[value]] for value in graph.ops.writes[row])
        origin.append(rewrite.origin[row])
        kind.append((TWIN if changes else RERUN) if again else rewrite.kind[row])
        part.append(() if again else rewrite.part[row])
    return replace(rewrite, origin=tuple(origin), kind=tuple(kind), part=tuple(part))
