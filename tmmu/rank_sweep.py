"""Layouts of one model over the ranks of a cluster: each is a judged plan of its fullest rank, or a refusal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from tmmu.driver import Compiled
from tmmu.errors import InternalError, TmmuError
from tmmu.ir.graph import Graph
from tmmu.planner.sizes.size_line import SizeLine, find_size_line
from tmmu.planner.sizes.size_model import NotPolynomialError, number_at
from tmmu.rank_plans import RankKind, RankPlans, kind_of_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``tp`` ranks with columns and rows of each weight, ``fsdp`` with a batch each; ``checkpoint``: layers run again.

    ``batch``: sequences of a rank at once. ``pp``: stages of a pipeline, with ``microbatches`` of ``batch`` in a step;
    ``None`` without stages. ``ep`` ranks share the experts.
    """

    tp: int
    fsdp: int
    batch: int
    checkpoint: bool
    pp: int = 1
    microbatches: int | None = None
    ep: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRank:
    """A rank's step made to fit: its bytes in the plan, ops that run again, and their FLOPs as torch counts them."""

    planned: int
    reruns: int
    extra_flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """What the fullest rank of a layout takes in bytes, as it is (``eager``) and in the plan, and does in a step.

    ``sent``: bytes that it sends to other ranks in ``collectives`` calls; ``flops`` as torch counts them.
    ``follows_from``: the batches whose traces say this one; empty for a layout that was traced itself. ``fitted``: what
    was made of a plan that does not fit, where that was asked for and found.
    """

    layout: Layout
    rank: int
    eager: int | None
    planned: int
    sent: int
    collectives: int
    flops: int
    follows_from: tuple[int, ...] = ()
    fitted: FittedRank | None = None

    @property
    def needed(self) -> int:
        """What the rank must have in a run as it is, where that is known."""
        return self.planned if self.eager is None else self.eager


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLayout:
    """A layout that is not planned, and the error that says why."""

    layout: Layout
    error: TmmuError


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutAxes:
    """The values of each field of a layout; one ``ep`` goes with all layouts, and is refused by some.

    ``stages`` are those of a rank: a step has as many micro-batches as there are in all, where none are named.
    """

    tp: Sequence[int]
    batch: Sequence[int]
    checkpoint: Sequence[bool]
    pp: Sequence[int] = (1,)
    microbatches: Sequence[int | None] = (None,)
    ep: Sequence[int] = (1,)
    stages: int = 1


def layouts_of(world: int, axes: LayoutAxes) -> tuple[Layout, ...]:
    """All combinations, in the order of the fields, whose ranks are ``world``, and of whose experts all are whole.

    Without stages there are no micro-batches, and one layout for all their numbers.
    """
    combinations = product(axes.tp, axes.pp, axes.ep, axes.batch, axes.microbatches, axes.checkpoint)
    layouts = (
        Layout(
            tp=tp, fsdp=world // (tp * pp), batch=batch, checkpoint=checkpoint, pp=pp, ep=ep,
            microbatches=(microbatches or pp * axes.stages) if pp > 1 else None,
        )
        for tp, pp, ep, batch, microbatches, checkpoint in combinations
        if world % (tp * pp) == 0 and (len(axes.ep) == 1 or (ep % tp == 0 and world // pp % ep == 0) or ep == 1)
    )  # fmt: skip
    return tuple(dict.fromkeys(layouts))


class SweepTools(Protocol):
    """What plans the layouts of a sweep."""

    def compile_layout(self, layout: Layout, /) -> RankPlans:
        """The plans of all kinds of ranks, each of a trace of its own."""

    def plan_graph(self, graph: Graph, /) -> Compiled:
        """The judged plan of a graph."""

    def fit_rank(self, kind: RankKind, compiled: Compiled, others: int, /) -> FittedRank | None:
        """The step of that kind within the device, where it is to be fitted, can be, and does not fit by itself.

        ``others``: bytes of a rank of the fullest other kind, which is not fitted; 0 where there is one kind.
        """


def sweep(layouts: Sequence[Layout], tools: SweepTools) -> Iterator[LayoutRow | RefusedLayout]:
    """A row for each layout, in order; a fault of ours is raised, and no row.

    Layouts that differ in their batch alone are planned together, at the first of them: a batch whose numbers lie on a
    line through those of three others is not traced (``find_size_line``), and its plan is judged as any other.
    """
    rows: dict[Layout, LayoutRow | RefusedLayout] = {}
    for layout in layouts:
        if layout not in rows:
            batches = [other.batch for other in layouts if replace(other, batch=layout.batch) == layout]
            rows.update(_Batches(layout, tools).rows(batches))
        yield rows.pop(layout)


class _Batches:
    """The layouts that differ from ``layout`` in their batch alone; each is traced once at most.

    State: the plans of those that were traced, until their rows are made, and the rows of those that are refused.
    """

    def __init__(self, layout: Layout, tools: SweepTools) -> None:
        self.layout, self.tools = layout, tools
        self.plans: dict[int, RankPlans] = {}
        self.refused: dict[int, RefusedLayout] = {}

    def rows(self, batches: Sequence[int]) -> dict[Layout, LayoutRow | RefusedLayout]:
        """A row for each of these batches."""
        line = find_size_line(batches, self._graph_at)
        if line is not None and not self._traffic_is_on(line):
            line = None
        layouts = [replace(self.layout, batch=batch) for batch in batches]
        found: dict[Layout, LayoutRow | RefusedLayout] = {}
        for layout in layouts:
            row = self._row_on_line(layout, line)
            if row is not None:
                found[layout] = row
        for layout in layouts:
            if layout not in found:
                found[layout] = self._traced_row(layout)
                self.plans.pop(layout.batch, None)
        return found

    def _row_on_line(self, layout: Layout, line: SizeLine | None) -> LayoutRow | None:
        """The row of a batch that is not traced; ``None`` for one that was, or is to be."""
        if line is None or layout.batch in self.plans or layout.batch in self.refused:
            return None
        try:
            compiled = self.tools.plan_graph(line.graph_at(layout.batch))
            sent = number_at(layout.batch, self._sent_at(line.sizes[0]), self._sent_at(line.sizes[-1]))
        except InternalError:
            raise
        except (TmmuError, NotPolynomialError):
            return None  # a trace says why
        first = self.plans[line.sizes[0]]
        kind = kind_of_ranks(first.fullest_kind.ranks, compiled)
        calls, _ = _traffic_of(first.fullest)
        row = _row_of(layout, kind, compiled, (calls, sent), follows_from=line.sizes)
        return replace(row, fitted=self.tools.fit_rank(kind, compiled, 0))

    def _traced_row(self, layout: Layout) -> LayoutRow | RefusedLayout:
        plans = self._plans_at(layout.batch)
        if plans is None:
            return self.refused[layout.batch]
        row = _row_of(layout, plans.fullest_kind, plans.fullest, _traffic_of(plans.fullest))
        others = max((kind.planned for kind in plans.kinds if kind is not plans.fullest_kind), default=0)
        return replace(row, fitted=self.tools.fit_rank(plans.fullest_kind, plans.fullest, others))

    def _plans_at(self, batch: int) -> RankPlans | None:
        """The plans of a trace; ``None`` where the layout is refused."""
        if batch not in self.plans and batch not in self.refused:
            layout = replace(self.layout, batch=batch)
            try:
                self.plans[batch] = self.tools.compile_layout(layout)
            except InternalError:
                raise
            except TmmuError as error:
                self.refused[batch] = RefusedLayout(layout=layout, error=error)
        return self.plans.get(batch)

    def _graph_at(self, batch: int) -> Graph | None:
        """The graph of all ranks; ``None`` where they have several, or are refused."""
        plans = self._plans_at(batch)
        return plans.fullest.graph if plans is not None and len(plans.kinds) == 1 else None

    def _sent_at(self, batch: int) -> tuple[int, int]:
        return batch, _traffic_of(self.plans[batch].fullest)[1]

    def _traffic_is_on(self, line: SizeLine) -> bool:
        low, middle, high = line.sizes
        if len({_traffic_of(self.plans[size].fullest)[0] for size in line.sizes}) > 1:
            return False
        try:
            return number_at(middle, self._sent_at(low), self._sent_at(high)) == self._sent_at(middle)[1]
        except NotPolynomialError:
            return False


def _row_of(
    layout: Layout, kind: RankKind, compiled: Compiled, traffic: tuple[int, int], *, follows_from: tuple[int, ...] = ()
) -> LayoutRow:
    return LayoutRow(
        layout=layout,
        rank=kind.rank,
        eager=kind.eager,
        planned=kind.planned,
        sent=traffic[1],
        collectives=traffic[0],
        flops=sum(compiled.graph.notes.ops.flops),
        follows_from=follows_from,
    )


def _traffic_of(compiled: Compiled) -> tuple[int, int]:
    """(calls, bytes) between ranks; ``INTERNAL`` for a plan that was not traced as one of many ranks."""
    if compiled.traffic is None:
        raise InternalError("a trace of one rank of many says no traffic")
    return compiled.traffic.calls, compiled.traffic.bytes
