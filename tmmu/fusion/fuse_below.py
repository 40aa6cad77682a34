"""The peak guard: fusing never takes more memory than not fusing.

A fused op has its results from its beginning and its arguments to its end, so a region may be live where its ops one
by one were not. The region that holds most bytes at the peak is cut in halves, and with it all of its group, until the
peak is no higher than before; where that does not come about in ``MAX_CUTS`` cuts, the program stays as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tmmu.fusion.fuse_program import FormOf, insert_regions, kernel_regions, made_of, without_dead_ops
from tmmu.fusion.fused_operators import is_fused
from tmmu.fusion.regions import RegionFinder
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.program import Program

MAX_CUTS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedProgram:
    """``program`` is the fused one, or the one that came in.

    ``apart``: digests of the groups that were cut to keep the peak, in their order; ``fuse_program`` with them makes
    the same of the program, and plans nothing.
    """

    program: Program
    apart: tuple[str, ...]

    @property
    def cuts(self) -> int:
        """How many groups were cut."""
        return len(self.apart)


def fuse_below(
    program: Program, form_of: FormOf, stack_bytes: Callable[[Graph], int], limit: int | None = None
) -> FusedProgram:
    """The fused program whose stack, as ``stack_bytes`` plans it, is at most ``limit``, by default the program's."""
    limit, apart = stack_bytes(program.graph) if limit is None else limit, dict[str, None]()
    live = without_dead_ops(program)
    finder = RegionFinder(live)
    whole = finder.regions()
    for _ in range(MAX_CUTS):
        regions = kernel_regions(finder, whole, form_of, apart=apart)
        if not regions:
            break
        fused = insert_regions(live, regions)
        if stack_bytes(fused.graph) <= limit:
            return FusedProgram(program=made_of(program, fused), apart=tuple(apart))
        places = [op for op, call in enumerate(fused.calls) if is_fused(call.operator)]
        region, _ = regions[places.index(_holder(fused, places))]
        apart[region.group.digest] = None
    return FusedProgram(program=program, apart=tuple(apart))


def _holder(program: Program, places: list[int]) -> int:
    """The fused op that touches most of the bytes that are live at the peak; of two, the first."""
    graph = program.graph
    born, last = _lifetimes(graph)
    levels = [0] * (len(graph.ops) + 1)
    for buffer, begin in born.items():
        levels[begin] += graph.buffers.bytes[buffer]
        levels[last[buffer] + 1] -= graph.buffers.bytes[buffer]
    level = highest = peak = 0
    for op, change in enumerate(levels):
        level += change
        if level > highest:
            highest, peak = level, op
    live = {buffer for buffer, begin in born.items() if begin <= peak <= last[buffer]}

    def held(op: int) -> int:
        values = (*graph.ops.reads[op], *graph.ops.writes[op])
        touched = {graph.values.buffer[value] for value in values}
        return sum(graph.buffers.bytes[buffer] for buffer in touched & live)

    return max(places, key=lambda op: (op == peak, held(op), -op))


def _lifetimes(graph: Graph) -> tuple[dict[int, int], dict[int, int]]:
    """First and last op by buffer that does not persist; outputs last to the end."""
    born: dict[int, int] = {}
    last: dict[int, int] = {}
    for op in range(len(graph.ops)):
        for value in (*graph.ops.reads[op], *graph.ops.writes[op]):
            buffer = graph.values.buffer[value]
            if graph.buffers.role[buffer] not in PERSISTENT_ROLES:
                born.setdefault(buffer, op)
                last[buffer] = op
    outputs = (graph.values.buffer[value] for value in graph.outputs)
    last.update({buffer: len(graph.ops) - 1 for buffer in outputs if buffer in born})
    return born, last
