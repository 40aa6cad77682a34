"""The curve of a step: how few bytes its stack may take, by the time that it costs.

A *frame* is the step in one form and one order, with nothing run again; what may be run again is searched for in each
frame, and the points of all frames that no other one undercuts are the curve. It depends on the step and the levers
alone, not on a budget, so that less budget never takes more bytes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.ir.graph import Graph
from tmmu.ir.plan import ArenaSpec
from tmmu.ir.rewrite import Rewrite
from tmmu.planner.fit.forms import LEVERS, RECOMPUTE, TAKEOVER, Form, StepForms
from tmmu.planner.fit.orders import Order
from tmmu.planner.fit.search import Point, Search, block_boundaries
from tmmu.planner.fit.step_facts import StepFacts
from tmmu.planner.fit.step_table import StepTable, step_table

MOST_WORK: Final = 16_000_000
"""Rows of schedules after which no further frame is searched; frames that start with the fewest bytes come first."""
MUCH_LESS: Final = 0.95
LITTLE_TIME: Final = 1 / 500
"""A form of the step that takes this share of another's bytes, for no more than this share of its time more, is the one
that is searched.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A form of the step in one order; ``time`` and ``flops`` are what it takes more than the base."""

    order: str
    form: Form
    table: StepTable
    time: int
    flops: int

    @property
    def rewrite(self) -> Rewrite:
        """The form, in the order of its graph."""
        return self.form.rewrite


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Bytes at the fullest position; extra picoseconds by the roofline, and FLOPs; how: a frame, a point of its search.

    ``time`` may be negative where a frame does less than the base.
    """

    peak: int
    time: int
    flops: int
    frame: int
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCurve:
    """``points`` rise in time and fall in bytes; ``time`` and ``flops`` are those of the base."""

    base: Graph
    arenas: tuple[ArenaSpec, ...]
    levers: tuple[str, ...]
    near: bool
    time: int
    flops: int
    frames: tuple[Frame, ...]
    points: tuple[CurvePoint, ...]
    work: int
    """Rows of all schedules that were made."""


def step_curve(base: Graph, arenas: Sequence[ArenaSpec], levers: Collection[str], *, near: bool = False) -> StepCurve:
    """The curve of a legal graph with calls, with these levers alone. Deterministic; a second for thousands of ops.

    ``near``: rewrites that have other bits than the step are allowed.
    """
    forms = StepForms(base=base, arenas=tuple(arenas), near=near)
    return StepFrames.of(forms, levers).curve(again=RECOMPUTE in levers)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFrames:
    """All frames of a step, which its curves with and without what runs again share."""

    forms: StepForms
    levers: tuple[str, ...]
    starts: "tuple[_Start, ...]"

    @classmethod
    def of(cls, forms: StepForms, levers: Collection[str]) -> "StepFrames":
        """Those that the levers make of the forms."""
        starts = [
            _Start.of(form, name, order, takes_over=TAKEOVER in levers)
            for form in forms.of(levers)
            for name, order in form.orders_of(levers)
        ]
        names = tuple(name for name, _ in LEVERS if name in levers and name != RECOMPUTE)
        return cls(forms=forms, levers=names, starts=tuple(starts))

    def curve(self, *, again: bool) -> StepCurve:
        """``again``: with what may run again, else the frames alone."""
        plain, starts = self.forms.whole.facts, self.starts
        frames = tuple(start.frame(plain) for start in starts)
        points, work = list[CurvePoint](), 0
        for place in sorted(range(len(starts)), key=lambda place: (starts[place].point.peak, place)):
            start, frame = starts[place], frames[place]
            is_beaten = any(start.is_beaten_by(other, plain.time) for other in starts)
            is_searched = again and work < MOST_WORK and not is_beaten
            before = start.search.work
            for point in _searched(start.search) if is_searched else (start.point,):
                both = {"time": frame.time + point.time, "flops": frame.flops + point.flops}
                points.append(CurvePoint(peak=point.peak, frame=place, point=point, **both))
            work += start.search.work - before
        return StepCurve(
            base=self.forms.base,
            arenas=self.forms.arenas,
            levers=(*self.levers, RECOMPUTE) if again else self.levers,
            near=self.forms.near,
            time=plain.time,
            flops=plain.flops,
            frames=frames,
            points=_undercut_by_none(points),
            work=work,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A frame before anything runs again."""

    order: str
    form: Form
    search: Search
    point: Point

    @classmethod
    def of(cls, form: Form, name: str, order: Order, *, takes_over: bool) -> "_Start":
        """Makes its one schedule."""
        search = Search(table=step_table(form.facts, order, takes_over=takes_over))
        state = search.start()
        search.schedule(state)
        return cls(order=name, form=form, search=search, point=search.point(state))

    def frame(self, plain: StepFacts) -> Frame:
        """What the curve keeps of it."""
        facts = self.form.facts
        return Frame(
            order=self.order,
            form=self.form,
            table=self.search.table,
            time=facts.time - plain.time,
            flops=facts.flops - plain.flops,
        )

    def is_beaten_by(self, other: "_Start", base_time: int) -> bool:
        """Whether another form in the same order takes much less bytes for hardly more time."""
        more_time = other.form.facts.time - self.form.facts.time
        return (
            other.order == self.order
            and other.point.peak < MUCH_LESS * self.point.peak
            and more_time <= LITTLE_TIME * base_time
        )


def _searched(search: Search) -> Iterator[Point]:
    """What a frame's searches pass through."""
    yield from search.shave(search.start())
    boundaries = block_boundaries(search.table)
    if boundaries:
        yield from search.shave(search.start(boundaries))


def _undercut_by_none(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    best = list[CurvePoint]()
    for point in sorted(points, key=lambda p: (p.time, p.peak, p.flops, p.frame, p.point.dropped)):
        if not best or point.peak < best[-1].peak:
            best.append(point)
    return tuple(best)
