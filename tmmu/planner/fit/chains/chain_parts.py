"""Chains in parts: images of a batch, or rows of a wide layer, some at a time from the start of a chain to its end.

What only the chain reads is never whole; what others read is written at its place. Of a step without gradients alone:
with them, what a chain makes is kept for the backward pass, so that parts of it would save nothing. Each part has the
numbers of the whole; products and convolutions are tried against it where they are bound. O(parts x ops).
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.ids import OpId
from tmmu.ir.parts.boxes import Box, part_of
from tmmu.ir.rewrite import PART, PLACED, SAME, Part, Rewrite, identity_rewrite
from tmmu.planner.fit.chains.chain import Chain, Units, box_of_units, chains, results_of
from tmmu.planner.fit.head import Steps
from tmmu.planner.fit.head_parts import UNIT

FULL_SHARE: Final = 2
"""A chain stays whole where less than one in so many of the bytes at the fullest position is ever live in it."""
MOST_ROWS: Final = 4_000
"""Chains stay whole that would make more ops of the step."""
NECK_SHARE: Final = 2
"""Few bytes are live where it is at most one in so many of the most."""
Row: TypeAlias = "tuple[OpId, str, Part]"


def chain_parts(base: Graph, parts: int, *, by_rows: bool, is_long: bool) -> Rewrite:
    """The rewrite with chains in so many parts, of items or ``by_rows``; one that changes nothing where none gains.

    ``base`` has calls. ``is_long``: chains go on where few bytes are live, where they end otherwise.
    """
    if any(stage != "forward" for stage in base.ops.stage):
        return identity_rewrite(base)
    steps = Steps.of(base)
    count, live = _most_units(steps, by_rows=by_rows), _live_bytes(steps)
    least = max(live, default=0) // FULL_SHARE
    rows: list[Row] = [(op, SAME, ()) for op in base.ops.ids]
    if count > 1:
        ranges = [*unit_ranges(count, parts)]
        smallest = min(ranges, key=lambda units: units.high - units.low)
        for chain in chains(steps, smallest, () if is_long else _necks(steps)):
            if chain.ops and max(live[chain.ops[0] : chain.ops[-1] + 1]) >= least:
                longer = _with_chain(steps, chain, rows, ranges)
                rows = longer if len(longer) <= max(MOST_ROWS, len(base.ops)) else rows
    return Rewrite(
        base_hash=base.ir_hash,
        origin=tuple(origin for origin, _, _ in rows),
        kind=tuple(kind for _, kind, _ in rows),
        part=tuple(part for _, _, part in rows),
    )


def unit_ranges(count: int, parts: int) -> Iterator[Units]:
    """At most ``parts`` ranges that are about as large, at multiples of ``UNIT`` where there are many units."""
    step = UNIT if count >= 2 * UNIT * parts else 1
    parts = max(1, min(parts, count))
    bounds = [*(count * index // parts // step * step for index in range(parts)), count]
    return (Units(low, high, count) for low, high in pairwise(bounds))


def _most_units(steps: Steps, *, by_rows: bool) -> int:
    """The number of items, or of rows, that the most bytes of results have; 0 where there are none."""
    bytes_by_count: dict[int, int] = {}
    for op in steps.graph.ops.ids:
        for value in results_of(steps, op)[:1]:
            shape, buffer = steps.window(value).shape, steps.buffer(value)
            if len(shape) > 1 and steps.graph.buffers.role[buffer] not in PERSISTENT_ROLES:
                count = math.prod(shape[:-1]) if by_rows else shape[0]
                bytes_by_count[count] = bytes_by_count.get(count, 0) + steps.graph.buffers.bytes[buffer]
    return max(bytes_by_count, key=lambda count: (bytes_by_count[count], count), default=0)


def _necks(steps: Steps) -> set[OpId]:
    """The ops before which few bytes are live, fewer than before the ops beside them."""
    across = _live_bytes(steps, is_between=True)
    few = max(across, default=0) // NECK_SHARE
    beside = zip([0, *across], across, [*across[1:], 0], strict=False)
    return {OpId(op) for op, (before, here, after) in enumerate(beside) if here <= min(few, after) and here < before}


def _live_bytes(steps: Steps, *, is_between: bool = False) -> list[int]:
    """Per op, in the order of the program, the bytes that are live of what is there during the step alone.

    ``is_between``: before the op and after the one before it.
    """
    buffers, ends = steps.graph.buffers, [0] * (len(steps.graph.ops) + 1)
    outputs = {steps.buffer(value) for value in steps.graph.outputs}
    for buffer, writers in steps.writers.items():
        if buffers.role[buffer] not in PERSISTENT_ROLES:
            last = max((*writers, *steps.readers.get(buffer, ()))) + 1
            ends[writers[0] + is_between] += buffers.bytes[buffer]
            ends[len(ends) - 1 if buffer in outputs else last] -= buffers.bytes[buffer]
    return [*accumulate(ends[:-1])]


def _with_chain(steps: Steps, chain: Chain, rows: Sequence[Row], ranges: Sequence[Units]) -> list[Row]:
    """The rows with the chain in parts, one part after the other; as they were where it cannot be."""
    boxes = [_boxes(steps, chain, units) for units in ranges]
    cut = set(chain.ops)
    outputs = {steps.buffer(value) for value in steps.graph.outputs}
    placed = {
        op
        for op in chain.ops
        for buffer in [steps.buffer(results_of(steps, op)[0])]
        if buffer in outputs or not cut.issuperset(steps.readers.get(buffer, ()))
    }
    if len(ranges) == 1 or placed == cut or any(part is None for part in boxes) or _is_cut_apart(steps, cut, placed):
        return list(rows)
    in_parts = [
        (op, PLACED if op in placed else PART, part_of(part[op], steps.window(results_of(steps, op)[0]).shape))
        for part in boxes
        if part is not None
        for op in chain.ops
    ]
    first = [(op, SAME, ()) for op in chain.beside if op > chain.ops[0]]
    place = rows.index((chain.ops[0], SAME, ()))
    moved = {op for op, _, _ in first}
    after = [row for row in rows[place:] if row[0] not in cut and row[0] not in moved]
    return [*rows[:place], *first, *in_parts, *after]


def _is_cut_apart(steps: Steps, cut: set[OpId], placed: set[OpId]) -> bool:
    """Whether what ops change in its place is written whole, or changed outside the chain."""
    writers = [steps.writers[steps.buffer(results_of(steps, op)[0])] for op in cut]
    return any(len(row) > 1 and not (cut.issuperset(row) and placed.isdisjoint(row)) for row in writers)


def _boxes(steps: Steps, chain: Chain, units: Units) -> dict[OpId, Box] | None:
    """Of each op of a chain, the box that these units are; ``None`` where one is none."""
    boxes: dict[OpId, Box] = {}
    for op in chain.ops:
        box = box_of_units(steps, chain, op, units)
        if box is None:
            return None
        boxes[op] = box
    return boxes
