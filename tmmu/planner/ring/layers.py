"""From a graph to a ring problem: which weights are read together, and when. One block per group, one copy per visit.

Every op that reads weights belongs to a *layer*: the outermost numbered part of its module's path (``h.3`` of
``h.3.attn.q``). A run of ops of one layer and one stage is a *use* of it. Weights that are read in exactly the same
uses form a block. So each visit of a block needs all of it, and a weight that several layers share is a block of its
own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final

from tmmu.ir.graph import CONSTANT, PARAMETER, Graph
from tmmu.ir.ids import BufferId, Bytes, OpId
from tmmu.ir.ring import Member, Visit
from tmmu.judge.spans import saved_values
from tmmu.planner.ring.problem import RingProblem
from tmmu.planner.ring.profile import Profile, copy_time, op_time

LARGE_FRACTION: Final = 4
"""A numbered part with more than a quarter of the model's bytes is split by its own numbers (``stages.0.blocks.3``)."""
SMALL_FRACTION: Final = 1000
"""A use of less than a thousandth of the bytes joins its neighbour: a tiny copy costs about what a larger one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WeightRead:
    """An op that reads weights: its position in the order, its module's path, its stage, and the weights' buffers."""

    position: int
    path: str
    stage: str
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerUse:
    """Consecutive reads of one layer in one stage."""

    layer: str
    reads: tuple[_WeightRead, ...]

    @property
    def stage(self) -> str:
        return self.reads[0].stage

    @property
    def weights(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(weight for read in self.reads for weight in read.weights))


_Group = tuple[tuple[int, ...], tuple[int, ...]]
"""The uses in which a block is read, and its buffers."""


def ring_problem(  # noqa: PLR0913 - what a plan is, piece by piece
    graph: Graph, order: Sequence[OpId], *, mode: str, preset: str, alignment: int, profile: Profile
) -> RingProblem:
    """Blocks, visits and times of a plan that runs ``order``; a weight that no op reads is in no block.

    Blocks are in the order of their first visits, members in that of their ids. Pinned are the blocks that are read at
    several places of one stage, and those that the caller or a gradient reads after the last op.
    """
    uses = _merge_small_uses(graph, _layer_uses(graph, _weight_reads(graph, order)))
    groups = _group_by_uses(uses)
    read_later = _read_after_last_op(graph, order, mode, preset)
    blocks = [_lay_out_block(graph, buffers, alignment) for _, buffers in groups]
    stages = [[uses[use].stage for use in row] for row, _ in groups]
    pinned = tuple(
        len(set(row)) < len(row) or any(buffer in read_later for buffer in buffers)
        for row, (_, buffers) in zip(stages, groups, strict=True)
    )
    sizes = tuple(size for size, _ in blocks)
    return RingProblem(
        names=tuple(_block_name([uses[use].layer for use in row]) for row, _ in groups),
        bytes=sizes,
        members=tuple(members for _, members in blocks),
        pinned=pinned,
        visits=_merge_close_visits(_visits(uses, groups), sizes, pinned),
        op_ns=tuple(op_time(profile, graph, op) for op in order),
        copy_ns=tuple(copy_time(profile, size) for size in sizes),
        alignment=alignment,
    )


def _weight_reads(graph: Graph, order: Sequence[int]) -> list[_WeightRead]:
    buffer_of, role, notes = graph.values.buffer, graph.buffers.role, graph.notes
    reads = []
    for position, op in enumerate(order):
        buffers = dict.fromkeys(buffer_of[value] for value in graph.ops.reads[op])
        weights = tuple(buffer for buffer in buffers if role[buffer] in (PARAMETER, CONSTANT))
        if weights:
            path = notes.ops.module[op] or notes.buffers[weights[0]].rpartition(".")[0]
            reads.append(_WeightRead(position=position, path=path, stage=graph.ops.stage[op], weights=weights))
    return reads


def _layer_uses(graph: Graph, reads: Sequence[_WeightRead]) -> list[_LayerUse]:
    """Runs of reads of one layer and one stage."""
    weights_under: dict[str, dict[int, None]] = {"": {}}
    for read in reads:
        for prefix in ("", *_numbered_prefixes(read.path)):
            weights_under.setdefault(prefix, {}).update(dict.fromkeys(read.weights))
    size = {prefix: _total_bytes(graph, weights) for prefix, weights in weights_under.items()}
    layers = [_layer_of(read.path, size) for read in reads]
    runs = groupby(zip(layers, reads, strict=True), key=lambda row: (row[0], row[1].stage))
    return [_LayerUse(layer=layer, reads=tuple(read for _, read in rows)) for (layer, _), rows in runs]


def _numbered_prefixes(path: str) -> list[str]:
    """The prefixes of a path that end in a number, outermost first: of ``a.0.b.1.c``, ``a.0`` and ``a.0.b.1``."""
    names = path.split(".")
    return [".".join(names[: i + 1]) for i, name in enumerate(names) if name.isdecimal()]


def _layer_of(path: str, size: Mapping[str, int]) -> str:
    """The outermost numbered prefix that is not large, else the innermost one; without any the path itself."""
    prefixes = _numbered_prefixes(path)
    return next((p for p in prefixes if size[p] * LARGE_FRACTION <= size[""]), (prefixes or [path])[-1])


def _total_bytes(graph: Graph, buffers: Iterable[int]) -> int:
    return sum(graph.buffers.bytes[buffer] for buffer in buffers)


def _merge_small_uses(graph: Graph, uses: Sequence[_LayerUse]) -> list[_LayerUse]:
    """Small uses join the one before them in their stage, or the next one at its start; the larger gives the name."""
    small = _total_bytes(graph, dict.fromkeys(weight for use in uses for weight in use.weights)) // SMALL_FRACTION
    merged: list[_LayerUse] = []
    for use in uses:
        before = merged[-1] if merged else use
        if merged and before.stage == use.stage and min(_total_bytes(graph, u.weights) for u in (before, use)) < small:
            larger = max(before, use, key=lambda candidate: _total_bytes(graph, candidate.weights))
            merged[-1] = _LayerUse(layer=larger.layer, reads=before.reads + use.reads)
        else:
            merged.append(use)
    return merged


def _group_by_uses(uses: Sequence[_LayerUse]) -> list[_Group]:
    """(uses, buffers) of each block: the buffers that are read in exactly these uses."""
    read_in: dict[int, list[int]] = {}
    for index, use in enumerate(uses):
        for weight in use.weights:
            read_in.setdefault(weight, []).append(index)
    groups: dict[tuple[int, ...], list[int]] = {}
    for buffer in sorted(read_in):
        groups.setdefault(tuple(read_in[buffer]), []).append(buffer)
    return [(row, tuple(groups[row])) for row in sorted(groups)]


def _lay_out_block(graph: Graph, buffers: Sequence[int], alignment: int) -> tuple[int, tuple[Member, ...]]:
    """The bytes of a block, and its buffers one after another at aligned offsets."""
    padded = [-(-graph.buffers.bytes[buffer] // alignment) * alignment for buffer in buffers]
    offsets = accumulate(padded, initial=0)
    places = zip(buffers, offsets, strict=False)
    members = tuple(Member(buffer=BufferId(buffer), offset=Bytes(offset)) for buffer, offset in places)
    return max(sum(padded), alignment), members


def _block_name(layers: Sequence[str]) -> str:
    """The first layer that the block belongs to, and how many others do: ``embed +1``."""
    names = list(dict.fromkeys(layers))
    return names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "")


def _visits(uses: Sequence[_LayerUse], groups: Sequence[_Group]) -> tuple[Visit, ...]:
    """One visit per block and use, from the first to the last op that reads a member."""
    visits = []
    for block, (row, buffers) in enumerate(groups):
        for index in row:
            positions = [read.position for read in uses[index].reads if not set(buffers).isdisjoint(read.weights)]
            visits.append(Visit(block=block, first=positions[0], last=positions[-1]))
    return tuple(sorted(visits, key=lambda visit: (visit.first, visit.last, visit.block)))


def _merge_close_visits(visits: Sequence[Visit], sizes: Sequence[int], pinned: Sequence[bool]) -> tuple[Visit, ...]:
    """The visits; two of a streamable block become one where less than its bytes is needed in between.

    Holding the block over the gap then costs less room than the gap frees, and saves a copy.
    """
    merged: list[Visit] = []
    for block in range(len(sizes)):
        for visit in (candidate for candidate in visits if candidate.block == block):
            before = merged[-1] if merged and merged[-1].block == block and not pinned[block] else None
            if before and _bytes_between(visits, before.last, visit.first, sizes, pinned) < sizes[block]:
                merged[-1] = Visit(block=block, first=before.first, last=visit.last)
            else:
                merged.append(visit)
    return tuple(sorted(merged, key=lambda visit: (visit.first, visit.last, visit.block)))


def _bytes_between(
    visits: Sequence[Visit], after: int, before: int, sizes: Sequence[int], pinned: Sequence[bool]
) -> int:
    """The bytes of streamable blocks whose visits start after one position and before another."""
    blocks = {visit.block for visit in visits if after < visit.first < before and not pinned[visit.block]}
    return sum(sizes[block] for block in sorted(blocks))


def _read_after_last_op(graph: Graph, order: Sequence[OpId], mode: str, preset: str) -> frozenset[int]:
    """Buffers of graph outputs and of values that a gradient needs."""
    late = [value for _, value in saved_values(graph, order, mode, preset)]
    return frozenset(graph.values.buffer[value] for value in (*graph.outputs, *late))
