"""Layouts of one model over the ranks of a cluster: each is a judged plan of its fullest rank, or a refusal."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tmmu.driver import Compiled
from tmmu.errors import InternalError, TmmuError
from tmmu.rank_plans import RankPlans


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``tp`` ranks with columns and rows of each weight, ``fsdp`` with a batch each; ``checkpoint``: layers run again.

    ``batch``: sequences of a rank at once.
    """

    tp: int
    fsdp: int
    batch: int
    checkpoint: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """What the fullest rank of a layout takes in bytes, as it is (``eager``) and in the plan, and does in a step.

    ``sent``: bytes that it sends to other ranks in ``collectives`` calls; ``flops`` as torch counts them.
    """

    layout: Layout
    rank: int
    eager: int | None
    planned: int
    sent: int
    collectives: int
    flops: int

    @property
    def needed(self) -> int:
        """What the rank must have in a run as it is, where that is known."""
        return self.planned if self.eager is None else self.eager


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLayout:
    """A layout that is not planned, and the error that says why."""

    layout: Layout
    error: TmmuError


def layouts_of(
    world: int, *, tp: Sequence[int], batch: Sequence[int], checkpoint: Sequence[bool]
) -> tuple[Layout, ...]:
    """All combinations, in the order of their options; each ``tp`` divides ``world``."""
    return tuple(
        Layout(tp=columns, fsdp=world // columns, batch=sequences, checkpoint=again)
        for columns in tp
        for sequences in batch
        for again in checkpoint
    )


def sweep(
    layouts: Sequence[Layout], compile_layout: Callable[[Layout], RankPlans]
) -> Iterator[LayoutRow | RefusedLayout]:
    """A row for each layout, in order, as it is planned; a fault of ours is raised, and no row."""
    for layout in layouts:
        try:
            plans = compile_layout(layout)
        except InternalError:
            raise
        except TmmuError as error:
            yield RefusedLayout(layout=layout, error=error)
        else:
            yield _row_of(layout, plans)


def _row_of(layout: Layout, plans: RankPlans) -> LayoutRow:
    kind, compiled = plans.fullest_kind, plans.fullest
    traffic = _traffic_of(compiled)
    return LayoutRow(
        layout=layout,
        rank=kind.rank,
        eager=kind.eager,
        planned=kind.planned,
        sent=traffic[1],
        collectives=traffic[0],
        flops=sum(compiled.graph.notes.ops.flops),
    )


def _traffic_of(compiled: Compiled) -> tuple[int, int]:
    """(calls, bytes) between ranks; ``INTERNAL`` for a plan that was not traced as one of many ranks."""
    if compiled.traffic is None:
        raise InternalError("a trace of one rank of many says no traffic")
    return compiled.traffic.calls, compiled.traffic.bytes
