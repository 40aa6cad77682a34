"""Live bytes over time: of a plan, arena by arena, and of the model run as it is."""

from dataclasses import dataclass
from typing import Final

from tmmu.compare.timeline import levels, placed_items
from tmmu.eager.peak import eager_run, live_levels
from tmmu.export.buffer_rows import items_of, timeline_end
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

STACK: Final = "stack"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCurve:
    """Live bytes during the positions ``0 .. end - 1``: ``steps`` are (position, bytes from there on), ascending."""

    name: str
    end: int
    steps: tuple[tuple[int, int], ...]

    @property
    def peak(self) -> int:
        """The most bytes at any position."""
        return max((size for _, size in self.steps), default=0)


def planned_curves(plan: Plan) -> tuple[LiveCurve, ...]:
    """Padded bytes of each arena that holds anything, and last of the whole stack."""
    end = timeline_end(plan)
    arenas = ((name, tuple(placed_items(plan, (arena,)))) for arena, name in enumerate(plan.arenas.name))
    curves = [LiveCurve(name=name, end=end, steps=levels(items)) for name, items in arenas if items]
    return (*curves, stack_curve(plan))


def stack_curve(plan: Plan) -> LiveCurve:
    """Padded bytes of activations and gradients together."""
    return LiveCurve(name=STACK, end=timeline_end(plan), steps=levels(tuple(items_of(plan, segment=STACK))))


def eager_curve(graph: Graph | None, mode: str) -> LiveCurve | None:
    """Bytes, not padded, of the storages that a step makes, by eager's own calls; ``None`` where no graph says it."""
    eager = eager_run(graph, mode) if graph else None
    if eager is None:
        return None
    sizes = live_levels(eager.storages, eager.calls)
    before = (0, *sizes)
    steps = ((call, size) for call, size in enumerate(sizes) if size != before[call])
    return LiveCurve(name="eager", end=eager.calls, steps=tuple(steps))
