"""A comparison of two plans as values: text, Markdown and JSON are renderings of one ``Report``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.cli.output.summary import Memory, memory_of
from tmmu.compare.diff import Change, PeakChange, difference
from tmmu.compare.match import PlannedGraph

PPM = 1_000_000
NOTHING: Final = Memory(text=0, data=0, stack=0, inputs=0, total=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What is allowed on top: so many ``bytes``, or where that is nothing, parts per million of what was."""

    text: str
    bytes: int | None
    ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SideLine:
    """One side: as it was named, and what it is a plan of."""

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
    """Bytes before and after: of everything, of a segment, of the caller's inputs, or of an arena inside a segment.

    Of an arena that shares its segment: the most of it alive at once. ``change_ppm`` is nothing where nothing was.
    """

    name: str
    segment: str
    before: int
    after: int
    change: int
    change_ppm: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Changes at the peak that have one cause: a line of the model, an operator and a reason.

    ``gone``: the line is one of the model as it was. ``until``: who needs the first of these buffers last.
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
class Fared:
    """How many of all placed buffers fared so, and the bytes more or less."""

    why: str
    buffers: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """All that a comparison says.

    ``lines`` are the changes at the peak by cause, those of the source that adds most first. ``kept`` are weights,
    constants and state that came, went or changed in size.
    """

    before: SideLine
    after: SideLine
    same: bool
    figures: tuple[Figure, ...]
    peak: PeakChange
    lines: tuple[Line, ...]
    kept: tuple[Change, ...]
    fared: tuple[Fared, ...]


def compare(before: PlannedGraph, after: PlannedGraph, *, names: Sequence[str]) -> DiffReport:
    """The report of two planned graphs."""
    changes = difference(before, after)
    return DiffReport(
        before=side_line(names[0], before),
        after=side_line(names[1], after),
        same=before.plan.digest == after.plan.digest,
        figures=tuple(figures(before, after)),
        peak=changes.peak,
        lines=_lines(changes.peak),
        kept=changes.persistent,
        fared=tuple(Fared(why=why, buffers=n, bytes=size) for why, (n, size) in changes.totals.items()),
    )


def over(report: DiffReport, limit: Limit | None) -> tuple[Figure, ...]:
    """Of the total and the stack, those that grew by more than the limit."""
    if limit is None:
        return ()
    watched = [figure for figure in report.figures if figure.name in ("total", "stack")]
    if limit.bytes is not None:
        return tuple(figure for figure in watched if figure.change > limit.bytes)
    return tuple(figure for figure in watched if figure.change * PPM > figure.before * limit.ppm)


def side_line(name: str, side: PlannedGraph) -> SideLine:
    """What is told of one side."""
    graph, plan = side.graph, side.plan
    return SideLine(
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
    """The total, then each segment with its arenas, then the caller's inputs; from 0 where nothing was before."""
    old, new = memory_of(before.plan, before.graph) if before else NOTHING, memory_of(after.plan, after.graph)
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


def _lines(peak: PeakChange) -> tuple[Line, ...]:
    """Changes with one source, operator and reason together; sources by what they add, and inside one the same."""
    groups: dict[tuple[str, bool, str, str], list[Change]] = {}
    net: dict[tuple[str, bool], int] = {}
    for change in peak.changes:
        origin, gone = change.origin, change.after is None
        groups.setdefault((origin.source, gone, origin.op, change.why), []).append(change)
        net[origin.source, gone] = net.get((origin.source, gone), 0) + change.bytes
    sign = 1 if peak.bytes >= 0 else -1

    def place(line: Line) -> tuple[int, str, bool, int, str, str]:
        return -sign * net[line.source, line.gone], line.source, line.gone, -sign * line.bytes, line.op, line.why

    return tuple(sorted((_line(key, changes) for key, changes in groups.items()), key=place))


def blame(report: DiffReport) -> tuple[Line, int] | None:
    """The source that changes the peak most, the way it went: its first cause, and its net bytes."""
    if not report.lines or not report.peak.bytes:
        return None
    first = report.lines[0]
    net = sum(line.bytes for line in report.lines if (line.source, line.gone) == (first.source, first.gone))
    return (first, net) if net * report.peak.bytes > 0 else None


def _line(key: tuple[str, bool, str, str], changes: Sequence[Change]) -> Line:
    source, gone, op, why = key
    return Line(
        source=source,
        gone=gone,
        op=op,
        why=why,
        bytes=sum(change.bytes for change in changes),
        buffers=len(changes),
        modules=tuple(dict.fromkeys(change.origin.module for change in changes if change.origin.module)),
        until=changes[0].origin.until,
    )
