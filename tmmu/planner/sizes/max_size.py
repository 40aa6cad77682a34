"""The largest size of a step that fits in a limit, as it is and with the levers of fit, from few traces.

Sizes are searched in graphs that a ``SizeModel`` of a few traces predicts, each of them planned. What is found is
traced: where the trace is what was predicted, byte for byte, it is the answer; else the trace joins the model, whose
polynomials rise by a degree. Where no polynomials go through the traces, the search goes on in traces alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Never, TypeAlias

from tmmu.errors import BudgetTooSmall, PlanError, UserError
from tmmu.ir.graph import INPUT, PERSISTENT_ROLES, Graph
from tmmu.ir.plan import ArenaSpec, Plan, segment_bytes
from tmmu.planner.arenas import readable_size
from tmmu.planner.fit.curve import StepCurve, step_curve
from tmmu.planner.fit.fit_step import PPM, FittedStep, PlanSettings, fit_point, fit_step, judge_step
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.sizes.largest import MOST, largest_size
from tmmu.planner.sizes.size_model import NotPolynomialError, SizeModel, same_memory

Trace: TypeAlias = Callable[[int], tuple[Graph, Plan]]
"""The graph of the whole step at a size and its judged plan; raises ``UserError`` where the model refuses the size."""
MOST_POINTS: Final = 4
"""Traces that one model goes through: cubes, which no step is known to need."""
FAR: Final = 64
"""Times the sizes traced first, what is traced of a step that grows with none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """``starts``: sizes that are traced first, two at least; ``limit``: bytes of the stack, or of all (``is_whole``).

    ``unit``: what sizes may be multiples of where kernels pad them; ``levers``: those of fit, ``None`` for the step as
    it is alone; ``at_most``: the extra time that they may take, in ppm.
    """

    starts: tuple[int, ...]
    limit: int
    is_whole: bool
    mode: str
    arenas: tuple[ArenaSpec, ...]
    settings: PlanSettings
    unit: int = 1
    levers: tuple[str, ...] | None = None
    near: bool = False
    """Whether levers may make what is only near."""
    at_most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestSize:
    """``size``: traced, planned and judged; ``needed``: the bytes that the limit is for, of that plan.

    ``MOST`` of a step that does not grow: graph and plan are those of ``FAR`` times the sizes that were traced first.

    ``unit``: only multiples of it were looked at. ``is_predicted``: the trace is what was predicted, byte for byte;
    else the size was searched in traces. ``refusal``: what the model says against the next size, where it does.
    ``fitted``: the step with levers, which both judges have passed; ``extra_time``: what it takes more, in ppm.
    """

    size: int
    needed: int
    unit: int
    is_predicted: bool
    refusal: str
    graph: Graph
    plan: Plan
    fitted: FittedStep | None = None
    extra_time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSizes:
    """``None`` where not even 1 fits, and for ``fitted`` where no levers were named; ``traces``: the sizes traced."""

    as_it_is: LargestSize | None
    fitted: LargestSize | None
    traces: tuple[int, ...]


def max_sizes(trace: Trace, request: SizeRequest) -> MaxSizes:
    """Both answers. ``trace`` is called once for a size; what it raises at a start is raised.

    ``BUDGET_TOO_SMALL`` where nothing fits in any form. Usually a trace for each start and for each answer.
    """
    search = _Search(trace, request)
    as_it_is = search.largest(_AsItIs(request), max(request.starts))
    fitted = None
    if request.levers is not None:
        guess = as_it_is.size if as_it_is else 1
        fitted = search.largest(_WithLevers(request, request.levers), guess)
    if as_it_is is None and fitted is None:
        search.refuse(_AsItIs(request) if request.levers is None else _WithLevers(request, request.levers))
    return MaxSizes(as_it_is=as_it_is, fitted=fitted, traces=tuple(search.traces))


class _AsItIs:
    """The step in the plan of its graph."""

    def __init__(self, request: SizeRequest) -> None:
        self.request = request

    def count_bytes(self, graph: Graph) -> int:
        """Bytes at that size."""
        settings = self.request.settings
        plan = prepare_memory(
            graph,
            mode=self.request.mode,
            preset=settings.preset,
            token=settings.token,
            arenas=self.request.arenas,
            search_nodes=settings.search_nodes,
        )
        return needed_bytes(self.request, plan, graph)

    def answer(self, graph: Graph, plan: Plan) -> tuple[int, FittedStep | None, int]:
        """Bytes of a trace in its own plan."""
        return needed_bytes(self.request, plan, graph), None, 0


class _WithLevers:
    """The step in the fewest bytes that levers make of it within the extra time."""

    def __init__(self, request: SizeRequest, levers: tuple[str, ...]) -> None:
        self.request, self.levers = request, levers

    def count_bytes(self, graph: Graph) -> int:
        """Bytes at that size; where what is live does not fit, that, without a plan."""
        curve, place = self._least(graph)
        live = curve.points[place].peak + (_bytes_beside(graph) if self.request.is_whole else 0)
        if live > self.request.limit:
            return live
        least = fit_point(curve, place, self.request.settings)
        return needed_bytes(self.request, least.plan, least.graph)

    def answer(self, graph: Graph, plan: Plan) -> tuple[int, FittedStep | None, int]:
        """Bytes of a trace in the form that fits at the least cost, which is judged."""
        del plan
        curve, place = self._least(graph)
        least = fit_point(curve, place, self.request.settings)
        beside = needed_bytes(self.request, least.plan, least.graph) - least.stack_bytes
        try:
            cheapest = fit_step(curve, self.request.limit - beside, self.request.settings)
        except PlanError:  # an arena's own capacity is less than a cheaper form takes
            cheapest = None
        fitted = cheapest or judge_step(curve, least, self.request.settings)
        extra = fitted.time * PPM // max(1, curve.time)
        return needed_bytes(self.request, fitted.plan, fitted.graph), fitted, extra

    def _least(self, graph: Graph) -> tuple[StepCurve, int]:
        """The curve, and the place of its point of the fewest bytes within the extra time."""
        curve = step_curve(graph, self.request.arenas, self.levers, near=self.request.near)
        most = self.request.at_most
        places = [at for at, point in enumerate(curve.points) if most is None or point.time * PPM <= most * curve.time]
        return curve, places[-1]


class _Search:
    """Traces, each of a size once, and the sizes through which predictions go."""

    def __init__(self, trace: Trace, request: SizeRequest) -> None:
        self.trace, self.request = trace, request
        self.traces = {size: trace(size) for size in request.starts}
        self.refused: dict[int, str] = {}
        self.points = list(request.starts)

    def largest(self, form: _AsItIs | _WithLevers, guess: int) -> LargestSize | None:
        """The largest size of one form; ``None`` where 1 does not fit."""
        limit, unit = self.request.limit, self.request.unit
        while True:
            model = SizeModel(tuple((size, self.traces[size][0]) for size in self.points))
            needs = _within_plans(lambda size, model=model: form.count_bytes(model.graph_at(size)))  # type: ignore[misc]
            try:
                guess = largest_size(needs, limit, guess=guess)
            except NotPolynomialError:
                break
            if guess == MOST:
                guess = FAR * max(self.points)
                if self._is_as_predicted(model, guess):
                    return replace(self._answer(form, guess, unit=1, is_predicted=True), size=MOST)
            multiple = guess // unit * unit
            for size in dict.fromkeys((guess, multiple)):
                if self._is_as_predicted(model, size):
                    return self._answer(form, size, unit=1 if size == guess else unit, is_predicted=True)
            guess = multiple or guess
            if guess not in self.traces or guess in self.points or len(self.points) == MOST_POINTS:
                break
            self.points.append(guess)
        size = self._largest_traced(form, guess)
        return self._answer(form, size, unit=1, is_predicted=False) if size else None

    def _largest_traced(self, form: _AsItIs | _WithLevers, guess: int) -> int:
        """The same by traces alone.

        What was predicted may be right, or the last size that was traced be the last that the model takes: first.
        Sizes that the model refuses below one that it takes, as 1 of a norm over a batch, are passed over.
        """
        limit, measured = self.request.limit, _within_plans(lambda size: self._traced_needs(form, size))

        @cache
        def needs(size: int) -> int | None:
            need = measured(size)
            return 0 if size in self.refused and size < min(self.traces) else need

        for size in (max(self.traces), guess) if self.refused else (guess,):
            after = needs(size + 1) if size and (needs(size) or limit + 1) <= limit else 0
            if after is None or after > limit:
                return size
        size = largest_size(needs, limit, guess=guess)
        return size if size in self.traces else 0

    def refuse(self, form: _AsItIs | _WithLevers) -> Never:
        """``BUDGET_TOO_SMALL``, with the least that is needed."""
        least = 1 if self._trace_at(1) else min(self.traces)
        needed = self._traced_needs(form, least)
        what = f"it takes {readable_size(needed)}" if needed else "it has no plan at all"
        refused = "" if least == 1 else f"; the model refuses 1: {self.refused[1]}"
        raise BudgetTooSmall(
            f"not even {least} fits in {readable_size(self.request.limit)}: {what}{refused}",
            fix="give more room",
            least_bytes=needed,
            limit_bytes=self.request.limit,
        )

    def _is_as_predicted(self, model: SizeModel, size: int) -> bool:
        found = self._trace_at(size) if size else None
        try:
            return found is not None and same_memory(model.graph_at(size), found[0])
        except NotPolynomialError:
            return False

    def _trace_at(self, size: int) -> tuple[Graph, Plan] | None:
        """The trace; ``None`` where the model refuses the size."""
        if size not in self.traces and size not in self.refused:
            try:
                self.traces[size] = self.trace(size)
            except (UserError, PlanError) as error:
                self.refused[size] = error.what
        return self.traces.get(size)

    def _traced_needs(self, form: _AsItIs | _WithLevers, size: int) -> int | None:
        found = self._trace_at(size)
        if found is None:
            return None
        return form.count_bytes(found[0]) if isinstance(form, _WithLevers) else form.answer(*found)[0]

    def _answer(self, form: _AsItIs | _WithLevers, size: int, *, unit: int, is_predicted: bool) -> LargestSize:
        graph, plan = self.traces[size]
        needed, fitted, extra_time = form.answer(graph, plan)
        return LargestSize(
            size=size,
            needed=needed,
            unit=unit,
            is_predicted=is_predicted,
            refusal=self.refused.get(size + 1, ""),
            graph=graph,
            plan=plan,
            fitted=fitted,
            extra_time=extra_time,
        )


def _within_plans(needs: Callable[[int], int | None]) -> Callable[[int], int | None]:
    """``None`` where there is no plan at all, as beyond the capacity of an arena or 64 bits."""

    def need_or_none(size: int) -> int | None:
        try:
            return needs(size)
        except (UserError, PlanError):
            return None

    return need_or_none


def needed_bytes(request: SizeRequest, plan: Plan, graph: Graph) -> int:
    """The bytes of a plan that the limit is for: of the stack, or of weights, state, stack and inputs."""
    if not request.is_whole:
        return segment_bytes(plan.arenas, "stack")
    inputs = sum(size for size, role in zip(graph.buffers.bytes, graph.buffers.role, strict=True) if role == INPUT)
    return sum(segment_bytes(plan.arenas, segment) for segment in ("text", "data", "stack")) + inputs


def _bytes_beside(graph: Graph) -> int:
    """What is there all the time, before padding."""
    buffers = graph.buffers
    return sum(size for size, role in zip(buffers.bytes, buffers.role, strict=True) if role in PERSISTENT_ROLES)
