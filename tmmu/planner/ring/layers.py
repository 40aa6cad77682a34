"""The layers of a graph: which weights are read together, and when. One block each, one copy.

Ops that read weights are told apart by the layer that their module lies in. A run of ops of one layer is a *use* of
it; weights that are read in the same uses make a block, so that every visit of a block needs all of it, and a weight
that several layers share is a block of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final

from tmmu.ir.graph import CONSTANT, PARAMETER, Graph
from tmmu.ir.ring import Member, Visit
from tmmu.judge.spans import retained
from tmmu.planner.ring.problem import RingProblem
from tmmu.planner.ring.profile import Profile, copy_time, op_time

LARGE: Final = 4
"""A numbered part of the model with more than one in so many of its bytes is split by its own numbers."""
SMALL: Final = 1000
"""A use that needs less than one in so many joins another: a copy of a few bytes costs what a larger one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """An op that reads weights: its position, the module it lies in, its stage."""

    position: int
    path: str
    stage: str
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """Reads by consecutive ops of one layer."""

    layer: str
    reads: tuple[_Read, ...]

    @property
    def stage(self) -> str:
        return self.reads[0].stage

    @property
    def weights(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(weight for read in self.reads for weight in read.weights))


def ring_problem(  # noqa: PLR0913 - what a plan is, piece by piece
    graph: Graph, order: Sequence[int], *, mode: str, preset: str, alignment: int, profile: Profile
) -> RingProblem:
    """Blocks, visits and times of a plan that runs ``order``; weights that nothing reads are in no block.

    Blocks are in the order of their first visits, members in that of their ids. Pinned are the blocks that are read at
    several places of one stage, and those that the caller or a gradient reads after the last op.
    """
    uses = _joined(graph, _uses(graph, _reads(graph, order)))
    groups = _groups(uses)
    kept = _kept(graph, order, mode, preset)
    blocks = [_block(graph, buffers, alignment) for _, buffers in groups]
    stages = [[uses[use].stage for use in row] for row, _ in groups]
    pinned = tuple(
        len(set(found)) < len(found) or any(buffer in kept for buffer in buffers)
        for found, (_, buffers) in zip(stages, groups, strict=True)
    )
    sizes = tuple(size for size, _ in blocks)
    return RingProblem(
        names=tuple(_name([uses[use].layer for use in row]) for row, _ in groups),
        bytes=sizes,
        members=tuple(members for _, members in blocks),
        pinned=pinned,
        visits=_held_over(_visits(uses, groups), sizes, pinned),
        op_ns=tuple(op_time(profile, graph, op) for op in order),
        copy_ns=tuple(copy_time(profile, size) for size in sizes),
        alignment=alignment,
    )


def _reads(graph: Graph, order: Sequence[int]) -> list[_Read]:
    home, role, notes = graph.values.buffer, graph.buffers.role, graph.notes
    found = []
    for position, op in enumerate(order):
        buffers = dict.fromkeys(home[value] for value in graph.ops.reads[op])
        weights = tuple(buffer for buffer in buffers if role[buffer] in (PARAMETER, CONSTANT))
        if weights:
            path = notes.ops.module[op] or notes.buffers[weights[0]].rpartition(".")[0]
            found.append(_Read(position=position, path=path, stage=graph.ops.stage[op], weights=weights))
    return found


def _uses(graph: Graph, reads: Sequence[_Read]) -> list[_Use]:
    """Runs of reads of one layer and one stage."""
    under: dict[str, dict[int, None]] = {"": {}}
    for read in reads:
        for part in ("", *_numbered(read.path)):
            under.setdefault(part, {}).update(dict.fromkeys(read.weights))
    size = {part: _total(graph, weights) for part, weights in under.items()}
    layers = [_layer(read.path, size) for read in reads]
    runs = groupby(zip(layers, reads, strict=True), key=lambda row: (row[0], row[1].stage))
    return [_Use(layer=layer, reads=tuple(read for _, read in rows)) for (layer, _), rows in runs]


def _numbered(path: str) -> list[str]:
    """The parts of a path that end in a number, outermost first: of ``a.0.b.1.c``, ``a.0`` and ``a.0.b.1``."""
    names = path.split(".")
    return [".".join(names[: i + 1]) for i, name in enumerate(names) if name.isdecimal()]


def _layer(path: str, size: Mapping[str, int]) -> str:
    """The outermost numbered part that is not large; without any the path itself."""
    parts = _numbered(path)
    return next((part for part in parts if size[part] * LARGE <= size[""]), (parts or [path])[-1])


def _total(graph: Graph, buffers: Iterable[int]) -> int:
    return sum(graph.buffers.bytes[buffer] for buffer in buffers)


def _joined(graph: Graph, uses: Sequence[_Use]) -> list[_Use]:
    """Small uses join the one before of their stage, or the next at its start; the larger gives the name."""
    small = _total(graph, dict.fromkeys(weight for use in uses for weight in use.weights)) // SMALL
    found: list[_Use] = []
    for use in uses:
        before = found[-1] if found else use
        if found and before.stage == use.stage and min(_total(graph, u.weights) for u in (before, use)) < small:
            larger = max(before, use, key=lambda one: _total(graph, one.weights))
            found[-1] = _Use(layer=larger.layer, reads=before.reads + use.reads)
        else:
            found.append(use)
    return found


def _groups(uses: Sequence[_Use]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(uses, buffers) of each block: the buffers that are read in exactly these uses."""
    read_in: dict[int, list[int]] = {}
    for index, use in enumerate(uses):
        for weight in use.weights:
            read_in.setdefault(weight, []).append(index)
    groups: dict[tuple[int, ...], list[int]] = {}
    for buffer in sorted(read_in):
        groups.setdefault(tuple(read_in[buffer]), []).append(buffer)
    return [(row, tuple(groups[row])) for row in sorted(groups)]


def _block(graph: Graph, buffers: Sequence[int], alignment: int) -> tuple[int, tuple[Member, ...]]:
    """The bytes of a block, and its buffers one after another."""
    padded = [-(-graph.buffers.bytes[buffer] // alignment) * alignment for buffer in buffers]
    offsets = accumulate(padded, initial=0)
    members = tuple(Member(buffer=buffer, offset=offset) for buffer, offset in zip(buffers, offsets, strict=False))
    return max(sum(padded), alignment), members


def _name(layers: Sequence[str]) -> str:
    """The layer that a block belongs to, and how many others."""
    names = list(dict.fromkeys(layers))
    return names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "")


def _visits(uses: Sequence[_Use], groups: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> tuple[Visit, ...]:
    found = []
    for block, (row, buffers) in enumerate(groups):
        for index in row:
            read = [one.position for one in uses[index].reads if any(buffer in one.weights for buffer in buffers)]
            found.append(Visit(block=block, first=read[0], last=read[-1]))
    return tuple(sorted(found, key=lambda visit: (visit.first, visit.last, visit.block)))


def _held_over(visits: Sequence[Visit], sizes: Sequence[int], pinned: Sequence[bool]) -> tuple[Visit, ...]:
    """The visits; two of a block that may stream are one where less than the block is needed in between."""
    found: list[Visit] = []
    for block in range(len(sizes)):
        for visit in (one for one in visits if one.block == block):
            before = found[-1] if found and found[-1].block == block and not pinned[block] else None
            if before and _between(visits, before, visit, sizes, pinned) < sizes[block]:
                found[-1] = Visit(block=block, first=before.first, last=visit.last)
            else:
                found.append(visit)
    return tuple(sorted(found, key=lambda visit: (visit.first, visit.last, visit.block)))


def _between(visits: Sequence[Visit], one: Visit, other: Visit, sizes: Sequence[int], pinned: Sequence[bool]) -> int:
    """The bytes of blocks that may stream and are visited after ``one`` and before ``other``."""
    blocks = {v.block for v in visits if one.last < v.first < other.first and not pinned[v.block]}
    return sum(sizes[block] for block in sorted(blocks))


def _kept(graph: Graph, order: Sequence[int], mode: str, preset: str) -> frozenset[int]:
    """Buffers that are read after the last op."""
    late = [value for _, value in retained(graph, order, mode, preset)]
    return frozenset(graph.values.buffer[value] for value in (*graph.outputs, *late))
