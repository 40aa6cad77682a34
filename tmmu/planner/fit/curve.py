"""The curve of a step: how few bytes its stack may take, by the time that it costs.

A *frame* is the step in one form and one order, with nothing run again; what may be run again is searched for in each
frame, and the points of all frames that no other one undercuts are the curve. It depends on the step and the levers
alone, not on a budget, so that less budget never takes more bytes.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.ir.graph import Graph
from tmmu.ir.plan import ArenaSpec
from tmmu.ir.rewrite import Rewrite
from tmmu.planner.fit.forms import FREE_NAMES, RECOMPUTE, TAKEOVER, Form, StepForms
from tmmu.planner.fit.orders import Order
from tmmu.planner.fit.search import MOST_FAILURES, Point, Search
from tmmu.planner.fit.seeds.block_boundaries import block_boundaries
from tmmu.planner.fit.seeds.min_cut import min_cut
from tmmu.planner.fit.seeds.seed import NOTHING, Seed
from tmmu.planner.fit.step_facts import StepFacts
from tmmu.planner.fit.step_table import StepTable, step_table

MOST_WORK: Final = 16_000_000
"""Rows of schedules after which no search begins."""
SEEDS: Final[tuple[Callable[[StepTable], Seed | None], ...]] = (lambda _: NOTHING, block_boundaries, min_cut)
"""What each frame is searched from, in this order."""
PATIENCE: Final = 16
HASTE: Final = 3
"""So many points of a search in a row that the curve undercuts by ``LITTLE_TIME``, and it takes steps of so many times
the usual size, until one is that is not.
"""
SPARE_WORK: Final = 1_500_000
FEW_FAILURES: Final = 8
"""An order in which a form takes as many bytes as in another one is searched by itself before so many rows were
scheduled; then it is taken up where the other's search ended, and left after so many tries.
"""
BYTES_FOR_TIME: Final = 7
"""A frame that takes a hundredth more time promises as much as one that takes so many hundredths more bytes: on the
steps that were measured, a tenth more time halves the bytes.
"""
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
    whole_starts: "tuple[_Start, ...]" = ()
    """Of the base, where every form takes more time than it, so that some point takes none; not searched."""

    @classmethod
    def of(cls, forms: StepForms, levers: Collection[str]) -> "StepFrames":
        """Those that the levers make of the forms."""
        own_forms = forms.of(levers)
        is_dearer = all(form.facts.time > forms.whole.facts.time for form in own_forms)
        starts, whole_starts = (
            tuple(
                _Start.of(form, name, order, takes_over=TAKEOVER in levers)
                for form in some
                for name, order in form.orders_of(levers)
            )
            for some in (own_forms, [forms.whole] if is_dearer else [])
        )
        names = tuple(name for name in FREE_NAMES if name in levers)
        return cls(forms=forms, levers=names, starts=starts, whole_starts=whole_starts)

    def curve(self, *, again: bool) -> StepCurve:
        """``again``: with what may run again, else the frames alone."""
        plain = self.forms.whole.facts
        starts = (*self.starts, *self.whole_starts)
        frames = tuple(start.frame(plain) for start in starts)
        points = [
            CurvePoint(peak=start.point.peak, time=frame.time, flops=frame.flops, frame=place, point=start.point)
            for place, (start, frame) in enumerate(zip(starts, frames, strict=True))
        ]
        drawing = _Drawing(base_time=plain.time, points=undercut_by_none(points))
        if again:
            for alike in self._promising(plain.time):
                self._search(drawing, alike, frames)
        return StepCurve(
            base=self.forms.base,
            arenas=self.forms.arenas,
            levers=(*self.levers, RECOMPUTE) if again else self.levers,
            near=self.forms.near,
            time=plain.time,
            flops=plain.flops,
            frames=frames,
            points=drawing.points,
            work=drawing.work,
        )

    def _search(self, drawing: "_Drawing", alike: Sequence[int], frames: Sequence[Frame]) -> None:
        """Search an order of a form from each seed, and those that begin alike too, or take them up where that ends."""
        first, *others = alike
        search = self.starts[first].search
        ends = [drawing.search(frames[first], first, search, seed) for seed in _seeds(search)]
        for place in others:
            again = self.starts[place].search
            if drawing.work < SPARE_WORK:
                for seed in _seeds(again):
                    drawing.search(frames[place], place, again, seed)
            else:
                for seed in (search.seed(end) for end in ends if end is not None):
                    drawing.search(frames[place], place, again, seed, most_failures=FEW_FAILURES)

    def _promising(self, base_time: int) -> list[list[int]]:
        """The frames that are searched, the ones that promise most first; those together that begin alike."""
        largest = max(start.point.peak for start in self.starts)

        def promise(place: int) -> tuple[int, int, int]:
            start = self.starts[place]
            extra = start.form.facts.time - self.forms.whole.facts.time
            bytes_at_no_time = start.point.peak * (base_time + BYTES_FOR_TIME * extra) // max(1, base_time)
            return (bytes_at_no_time * 1000 // max(1, largest), start.area, place)

        families = list[list[int]]()
        for place in sorted(range(len(self.starts)), key=promise):
            start = self.starts[place]
            alike = next((each for each in families if start.is_like(self.starts[each[0]])), None)
            if alike is not None:
                alike.append(place)
            elif not any(start.is_beaten_by(other, base_time) for other in self.starts):
                families.append([place])
        return families


@dataclass(slots=True, kw_only=True)
class _Drawing:
    """The curve so far; ``work``: rows of all schedules."""

    base_time: int
    points: tuple[CurvePoint, ...]
    work: int = 0

    def search(
        self, frame: Frame, place: int, search: Search, seed: Seed, *, most_failures: int = MOST_FAILURES
    ) -> Point | None:
        """Search a frame from a seed; where it ends, ``None`` where it has no schedule or there was too much work."""
        if self.work >= MOST_WORK:
            return None
        before, beaten, points = search.work, 0, list[CurvePoint]()

        def pace(point: Point) -> int:
            nonlocal beaten
            time = frame.time + point.time
            beaten = beaten + 1 if self._least_time(point.peak) < time - LITTLE_TIME * self.base_time else 0
            return HASTE if beaten >= PATIENCE else 1

        point = None
        for point in search.shave(search.start(seed), most_failures=most_failures, pace=pace):
            both = {"time": frame.time + point.time, "flops": frame.flops + point.flops}
            points.append(CurvePoint(peak=point.peak, frame=place, point=point, **both))
        self.work += search.work - before
        self.points = undercut_by_none((*self.points, *points))
        return point

    def _least_time(self, peak: int) -> float:
        """Of the points that take no more bytes; infinite without any."""
        place = bisect_left(self.points, -peak, key=lambda point: -point.peak)
        return self.points[place].time if place < len(self.points) else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A frame before anything runs again."""

    order: str
    form: Form
    search: Search
    point: Point
    area: int
    """Bytes live, summed over all positions."""

    @classmethod
    def of(cls, form: Form, name: str, order: Order, *, takes_over: bool) -> "_Start":
        """Makes its one schedule."""
        search = Search(table=step_table(form.facts, order, takes_over=takes_over))
        state = search.start(NOTHING)
        search.schedule(state)
        return cls(order=name, form=form, search=search, point=search.point(state), area=search.area)

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

    def is_like(self, other: "_Start") -> bool:
        """Whether it is of the same form and takes as many bytes."""
        return self.form is other.form and self.point.peak == other.point.peak

    def is_beaten_by(self, other: "_Start", base_time: int) -> bool:
        """Whether another form in the same order takes much less bytes for hardly more time."""
        more_time = other.form.facts.time - self.form.facts.time
        return (
            other.order == self.order
            and other.point.peak < MUCH_LESS * self.point.peak
            and more_time <= LITTLE_TIME * base_time
        )


def _seeds(search: Search) -> list[Seed]:
    return [seed for seed_of in SEEDS if (seed := seed_of(search.table)) is not None]


def undercut_by_none(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Those that no other one undercuts in time and bytes, in the order of their time."""
    best = list[CurvePoint]()
    for point in sorted(points, key=lambda p: (p.time, p.peak, p.flops, p.frame, p.point.dropped)):
        if not best or point.peak < best[-1].peak:
            best.append(point)
    return tuple(best)
