"""The report of ``tmmu diff`` as values; text, Markdown and JSON are renderings of a ``DiffReport``."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.compare.diff import Change, PeakChange, difference
from tmmu.compare.match import PlannedGraph
from tmmu.eager.peak import eager_figures
from tmmu.planner.arenas import parse_size
from tmmu.summary.plan_summary import Memory, memory_of

PPM = 1_000_000
PERCENT: Final = re.compile(r"([0-9]{1,6})(?:\.([0-9]{1,4}))?\s*%", re.ASCII)
NO_MEMORY: Final = Memory(text=0, data=0, stack=0, inputs=0, total=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit on growth: in ``bytes``, or if that is ``None`` in parts per million of the size before."""

    text: str
    bytes: int | None
    ppm: int


def parse_limit(text: str) -> Limit:
    """``1%``, ``0.5 %`` or a size such as ``64MiB``; ``INVALID_CONFIG`` for anything else."""
    percentage = PERCENT.fullmatch(text.strip())
    if percentage:
        whole, part = percentage[1], (percentage[2] or "").ljust(4, "0")
        return Limit(text=text.strip(), bytes=None, ppm=int(whole + part))
    return Limit(text=text.strip(), bytes=parse_size(text), ppm=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSummary:
    """One side: its name on the command line, and what its plan is of."""

    name: str
    model: str
    target: str
    mode: str
    preset: str
    ops: int
    buffers: int
    ir_hash: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Bytes before and after: of everything, of a segment, of the caller's inputs, or of an arena in a segment.

    An arena that shares its segment counts the most bytes live at once. ``change_ppm`` is ``None`` if ``before`` is 0.
    """

    name: str
    segment: str
    before: int
    after: int
    change: int
    change_ppm: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerTotals:
    """One side run as it is, in bytes (``EagerFigures`` says what each is); ``python``: whose frames these are."""

    stack_bytes: int
    total_bytes: int
    reserved_bytes: int | None
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerTotalsByTime:
    """Both sides run as they are; ``None`` for one whose graph does not say how long eager holds what."""

    before: EagerTotals | None
    after: EagerTotals | None

    @property
    def is_comparable(self) -> bool:
        """Whether both are known, and of one CPython: another holds other locals for other times."""
        return bool(self.before and self.after and self.before.python == self.after.python)

    def figures(self) -> "tuple[Figure, ...]":
        """Total, stack and what torch's allocator reserves, where both sides know them."""
        if self.before is None or self.after is None:
            return ()
        reserved = self.before.reserved_bytes, self.after.reserved_bytes
        known = [
            _figure("eager total", "", self.before.total_bytes, self.after.total_bytes),
            _figure("eager stack", "eager total", self.before.stack_bytes, self.after.stack_bytes),
        ]
        if reserved[0] is not None and reserved[1] is not None:
            known.append(_figure("eager reserved", "eager total", reserved[0], reserved[1]))
        return tuple(known)


def eager_totals(side: PlannedGraph) -> EagerTotals | None:
    """The totals of the run that a plan replaces, as it is, if the graph says them."""
    figures = eager_figures(side.graph, side.plan.mode)
    if figures is None:
        return None
    return EagerTotals(
        stack_bytes=figures.stack_bytes,
        total_bytes=figures.total_bytes,
        reserved_bytes=figures.reserved_bytes,
        python=figures.python,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakCause:
    """Changes at the peak with one cause: a source line, an operator and a reason (``why``).

    ``gone``: the line is of the model before. ``until``: the last use of the first of these buffers.
    """

    source: str
    gone: bool
    op: str
    why: str
    bytes: int
    buffers: int
    modules: tuple[str, ...]
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """Buffers and bytes that changed for one reason, over the whole plan."""

    why: str
    buffers: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """A comparison; the fields are keys of the JSON output.

    ``lines``: changes at the peak by cause, those of the source that adds most first. ``kept``: weights, constants and
    state that came, went or changed in size. ``fared``: all placed buffers by reason.
    """

    before: SideSummary
    after: SideSummary
    same: bool
    figures: tuple[Figure, ...]
    peak: PeakChange
    lines: tuple[PeakCause, ...]
    kept: tuple[Change, ...]
    fared: tuple[ReasonCount, ...]
    eager: EagerTotalsByTime


def compare(before: PlannedGraph, after: PlannedGraph, *, names: Sequence[str]) -> DiffReport:
    """The report of two planned graphs."""
    changes = difference(before, after)
    return DiffReport(
        before=side_summary(names[0], before),
        after=side_summary(names[1], after),
        same=before.plan.digest == after.plan.digest,
        figures=tuple(figures(before, after)),
        peak=changes.peak,
        lines=_causes(changes.peak),
        kept=changes.persistent,
        fared=tuple(ReasonCount(why=why, buffers=n, bytes=size) for why, (n, size) in changes.totals.items()),
        eager=EagerTotalsByTime(before=eager_totals(before), after=eager_totals(after)),
    )


def figures_over(report: DiffReport, limit: Limit | None) -> tuple[Figure, ...]:
    """Which of total and stack grew by more than the limit, of the plan and of a run as it is.

    Of the latter only where it is comparable.
    """
    if limit is None:
        return ()
    eager = report.eager.figures() if report.eager.is_comparable else ()
    names = ("total", "stack", "eager total", "eager stack")
    watched = [figure for figure in (*report.figures, *eager) if figure.name in names]
    if limit.bytes is not None:
        return tuple(figure for figure in watched if figure.change > limit.bytes)
    return tuple(figure for figure in watched if figure.change * PPM > figure.before * limit.ppm)


def side_summary(name: str, side: PlannedGraph) -> SideSummary:
    """The summary of one side."""
    graph, plan = side.graph, side.plan
    return SideSummary(
        name=name,
        model=graph.notes.name,
        target=graph.target,
        mode=plan.mode,
        preset=plan.preset,
        ops=len(plan.order),
        buffers=len(plan.buffers),
        ir_hash=plan.ir_hash.hex(),
        digest=plan.digest.hex(),
    )


def figures(before: PlannedGraph | None, after: PlannedGraph) -> Iterator[Figure]:
    """Total, each segment with its arenas, and the caller's inputs; ``before`` is 0 without a first side."""
    old, new = memory_of(before.plan, before.graph) if before else NO_MEMORY, memory_of(after.plan, after.graph)
    yield _figure("total", "", old.total, new.total)
    for segment in ("text", "data", "stack"):
        yield _figure(segment, "", getattr(old, segment), getattr(new, segment))
        arenas = [i for i, name in enumerate(after.plan.arenas.segment) if name == segment]
        for i in arenas if len(arenas) > 1 else ():
            bounds = before.plan.arenas.bound[i] if before else 0, after.plan.arenas.bound[i]
            yield _figure(after.plan.arenas.name[i], segment, *bounds)
    yield _figure("inputs", "", old.inputs or 0, new.inputs or 0)


def _figure(name: str, segment: str, before: int, after: int) -> Figure:
    change = after - before
    ppm = abs(change) * PPM // before * (1 if change >= 0 else -1) if before else None
    return Figure(name=name, segment=segment, before=before, after=after, change=change, change_ppm=ppm)


def _causes(peak: PeakChange) -> tuple[PeakCause, ...]:
    """Changes grouped by cause. Order: net bytes of the source line, then bytes of the cause; ties by text."""
    groups: dict[tuple[str, bool, str, str], list[Change]] = {}
    net: dict[tuple[str, bool], int] = {}
    for change in peak.changes:
        origin, gone = change.origin, change.after is None
        groups.setdefault((origin.source, gone, origin.op, change.why), []).append(change)
        net[origin.source, gone] = net.get((origin.source, gone), 0) + change.bytes
    sign = 1 if peak.bytes >= 0 else -1

    def place(line: PeakCause) -> tuple[int, str, bool, int, str, str]:
        return -sign * net[line.source, line.gone], line.source, line.gone, -sign * line.bytes, line.op, line.why

    return tuple(sorted((_cause_of(key, changes) for key, changes in groups.items()), key=place))


def largest_cause(report: DiffReport) -> tuple[PeakCause, int] | None:
    """The source line that changes the peak most in its direction: its first cause and its net bytes."""
    if not report.lines or not report.peak.bytes:
        return None
    first = report.lines[0]
    net = sum(line.bytes for line in report.lines if (line.source, line.gone) == (first.source, first.gone))
    # A line that works against the change is not its cause, even if it is the largest.
    return (first, net) if net * report.peak.bytes > 0 else None


def _cause_of(key: tuple[str, bool, str, str], changes: Sequence[Change]) -> PeakCause:
    source, gone, op, why = key
    return PeakCause(
        source=source,
        gone=gone,
        op=op,
        why=why,
        bytes=sum(change.bytes for change in changes),
        buffers=len(changes),
        modules=tuple(dict.fromkeys(change.origin.module for change in changes if change.origin.module)),
        until=changes[0].origin.until,
    )
