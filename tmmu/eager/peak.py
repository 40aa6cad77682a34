"""What a model holds at most when it is run as it is, and who holds what a planned run would have dropped.

Figures are made of the lifetimes in a graph's notes (docs/spec/eager.md). Positions are calls that eager makes. Linear
in the storages, but for the model of torch's allocator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tmmu.eager.caching_allocator import reserved_peak
from tmmu.ir.graph import INPUT, PERSISTENT_ROLES, Graph
from tmmu.ir.lifetimes import CYCLE, EagerRun, Lifetimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one holder keeps at the peak beyond its last use: ``bytes`` in ``storages`` of them, the line of most."""

    holder: str
    bytes: int
    storages: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerFigures:
    """A run of the model as it is, in bytes.

    ``stack_bytes``: the most that the step's storages take during one call, at ``position``, unpadded. ``total_bytes``:
    with weights, state and inputs. ``reserved_bytes``: what torch's allocator takes of a GPU for all but the inputs,
    by a model of it; ``None`` on a CPU. ``holdings``: most bytes first. ``collected_bytes``: the stack had cycles been
    collected after their last use; ``None`` where no cycle matters. ``python``: whose frames these are. ``host_bytes``:
    the most that the step takes of the host's memory at once, beside these; 0 on a CPU, which is the device.
    ``in_parts``: layers that are one kernel in a run, and whose parts these figures are of.
    """

    stack_bytes: int
    total_bytes: int
    reserved_bytes: int | None
    position: int
    maker: str
    source: str
    python: str
    collected_bytes: int | None
    holdings: tuple[Holding, ...]
    host_bytes: int
    in_parts: tuple[str, ...]


def eager_run(graph: Graph, mode: str) -> EagerRun | None:
    """What eager holds in the run that a plan of ``mode`` replaces; ``None`` where the graph does not say that.

    A graph of version 1 says nothing, and one of a whole training step says nothing of its forward half alone.
    """
    is_whole = mode == "backward" or all(stage == "forward" for stage in graph.ops.stage)
    return graph.notes.eager if is_whole else None


def eager_figures(graph: Graph, mode: str = "backward") -> EagerFigures | None:
    """The figures of ``eager_run``; ``None`` where that is."""
    eager = eager_run(graph, mode)
    if eager is None:
        return None
    levels = live_levels(eager.storages, eager.calls)
    peak = max(levels, default=0)
    position = levels.index(peak) if levels else 0
    born = next((row for row, birth in enumerate(eager.storages.birth) if birth == position), None)
    return EagerFigures(
        stack_bytes=peak,
        total_bytes=eager.persistent_bytes + peak,
        reserved_bytes=_reserved_bytes(graph, eager) if graph.target == "cuda" else None,
        position=position,
        maker="" if born is None else eager.storages.maker[born],
        source="" if born is None else eager.storages.source[born],
        python=eager.python,
        collected_bytes=_collected_bytes(eager, position),
        holdings=tuple(_holdings(eager.storages, position)),
        host_bytes=max(live_levels(eager.host, eager.calls), default=0),
        in_parts=eager.in_parts,
    )


def live_levels(table: Lifetimes, calls: int, *, death: Sequence[int] | None = None) -> list[int]:
    """Live bytes during each call; ``death`` in place of the table's."""
    change = [0] * (calls + 1)
    for size, birth, end in zip(table.bytes, table.birth, death or table.death, strict=True):
        change[birth] += size
        change[end] -= size
    return list(accumulate(change[:calls]))


def _collected_bytes(eager: EagerRun, position: int) -> int | None:
    """The peak had every cycle been collected at once; ``None`` where none holds anything at the peak."""
    table = eager.storages
    rows = zip(table.holder, table.birth, table.last_use, table.death, strict=True)
    matters = any(h == CYCLE and birth <= position and use < position for h, birth, use, _ in rows)
    if not matters:
        return None
    ends = zip(table.holder, table.last_use, table.death, strict=True)
    death = [use + 1 if holder == CYCLE else end for holder, use, end in ends]
    return max(live_levels(table, eager.calls, death=death))


def _holdings(table: Lifetimes, position: int) -> Iterator[Holding]:
    by_holder: dict[str, list[int]] = {}
    for row, (birth, use, end) in enumerate(zip(table.birth, table.last_use, table.death, strict=True)):
        if birth <= position < end and use < position and table.holder[row]:
            by_holder.setdefault(table.holder[row], []).append(row)
    sums = {holder: sum(table.bytes[row] for row in rows) for holder, rows in by_holder.items()}
    for holder in sorted(sums, key=lambda name: (-sums[name], name)):
        largest = max(by_holder[holder], key=lambda row: (table.bytes[row], -row))
        yield Holding(holder=holder, bytes=sums[holder], storages=len(by_holder[holder]), source=table.source[largest])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """Storages as the allocator's model takes them."""

    bytes: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    stream: tuple[int, ...]


def _reserved_bytes(graph: Graph, eager: EagerRun) -> int:
    """Weights and state come first, each a storage; then the step. Inputs are the caller's.

    The allocator's model frees after the call at ``death``, lifetimes end before it.
    """
    roles = zip(graph.buffers.bytes, graph.buffers.role, strict=True)
    persistent = tuple(size for size, role in roles if role in PERSISTENT_ROLES and role != INPUT)
    count, table = len(persistent), eager.storages
    return reserved_peak(
        _Spans(
            bytes=(*persistent, *table.bytes),
            birth=(*(0,) * count, *table.birth),
            death=(*(eager.calls,) * count, *(end - 1 for end in table.death)),
            stream=(*(0,) * count, *table.stream) if table.stream else (),
        )
    )
