"""What a real run took beside what a plan says of it, as Python sees it."""

import html
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final

from tmmu.api.arguments import require_kind
from tmmu.codec.printable import align_columns, printable
from tmmu.planner.arenas import readable_size
from tmmu.summary.measured_calls import MeasuredCall

LISTED: Final = 10
"""Calls that a printed measurement names."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One run of a model or of the steady step as it is, by torch's own allocator. All figures are bytes.

    ``calls``: live bytes call by call, above what was there before. ``eager_peak``: the plan's figure for that, its
    ``eager.stack_bytes``. ``planned_peak``: the stack of a run inside the plan. ``between_peak``: the most at a moment
    outside of all calls. ``before``: what weights, state, inputs and all else that is reached take, by the allocator.
    ``in_parts``: layers that run as one kernel, and that the plan has in parts.
    """

    device: str
    calls: tuple[MeasuredCall, ...]
    eager_peak: int
    planned_peak: int
    between_peak: int
    before: int
    eager_calls: int
    in_parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_kind(self.calls, tuple, "a step to tmmu.measure, which makes it")

    @property
    def measured_peak(self) -> int:
        """The most that was live as a call ended."""
        return max((call.measured for call in self.calls), default=0)

    @property
    def inside_peak(self) -> int:
        """The most that was live at all, with what kernels held for themselves."""
        return max([self.between_peak, *(call.measured + call.inside for call in self.calls)])

    @property
    def agrees(self) -> bool:
        """Whether every call has the live bytes that eager's figure says, to the byte, and so the peak."""
        return not self.differing and self._made_peak == self.eager_peak

    @property
    def _made_peak(self) -> int:
        """The most that calls made and that was live as one ended."""
        return max((call.measured - call.beside for call in self.calls), default=0)

    @cached_property
    def differing(self) -> tuple[MeasuredCall, ...]:
        """The calls whose live bytes are others than eager's figure says."""
        return tuple(call for call in self.calls if call.difference != 0)

    @property
    def differences(self) -> tuple[str, ...]:
        """What differs, and what is beside it (numbers, kernels' temporaries), a line each; empty where nothing is."""
        lines = []
        if self.differing:
            first = self.differing[0]
            place = f"{first.name}{f' at {first.source}' if first.source else ''}"
            more = "a call that the trace lacks" if first.eager is None else f"{first.difference:+d} bytes"
            verb = "differs" if len(self.differing) == 1 else "differ"
            lines.append(f"{len(self.differing)} of {len(self.calls)} calls {verb}, first {place}: {more}")
        if len(self.calls) != self.eager_calls:
            lines.append(f"the run makes {len(self.calls)} calls, and the trace {self.eager_calls}")
        if self._made_peak != self.eager_peak:
            lines.append(f"the peak is {self._made_peak - self.eager_peak:+d} bytes from eager's figure")
        if self.in_parts:
            lines.append(f"{', '.join(self.in_parts)}: one kernel in the run, traced in parts")
        if beside := max((call.beside for call in self.calls), default=0):
            lines.append(f"made by no call: {readable_size(beside)} of wrapped numbers and generators' states at most")
        if self.inside_peak > self.measured_peak:
            lines.append(self._temporaries())
        return tuple(lines)

    def _temporaries(self) -> str:
        largest = max(self.calls, key=lambda call: call.measured + call.inside, default=None)
        above = readable_size(self.inside_peak - self.measured_peak)
        if largest is None or largest.measured + largest.inside < self.between_peak:
            return f"between two calls {above} more than at the peak are live"
        return f"kernels hold temporaries: {above} above the peak inside {largest.name}"

    def to_dict(self) -> dict[str, object]:
        """As plain values, for JSON."""
        return {
            "device": self.device,
            "agrees": self.agrees,
            "measured_peak": self.measured_peak,
            "inside_peak": self.inside_peak,
            "eager_peak": self.eager_peak,
            "planned_peak": self.planned_peak,
            "before": self.before,
            "differences": list(self.differences),
            "calls": [asdict(call) | {"difference": call.difference} for call in self.calls],
        }

    def __repr__(self) -> str:
        verdict = "agrees with" if self.agrees else "differs from"
        peak = f"{readable_size(self.measured_peak)} measured, {readable_size(self.eager_peak)} by the plan"
        return f"<MeasuredRun {verdict} the plan in {self._extent()} on {self.device}: {peak}>"

    def _extent(self) -> str:
        """Which calls agree or differ: all, or so many of them; the figure of the peak alone is beside them."""
        count = len(self.calls)
        if self.differing:
            return f"{len(self.differing)} of {count} call{'s' if count != 1 else ''}"
        if not self.agrees:
            return "its peak, and in no call"
        return "its one call" if count == 1 else f"all {count} calls"

    def __str__(self) -> str:
        """The verdict, what differs, and the calls with most live bytes."""
        heading, *rows = self._table()
        table = align_columns(">>>><<", heading, rows) if rows else []
        return "\n".join(map(printable, (repr(self).strip("<>"), *self.differences, "", *table)))

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        heading, *rows = self._table()
        texts = (repr(self).strip("<>"), *self.differences)
        head = "".join(f"<th>{name}</th>" for name in heading)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"{''.join(f'<p>{html.escape(text)}</p>' for text in texts)}<table><tr>{head}</tr>{body}</table>"

    def _table(self) -> list[tuple[str, ...]]:
        """The calls that differ, else those with most live bytes."""
        chosen = self.differing or sorted(self.calls, key=lambda call: -call.measured)
        rows = [
            (
                readable_size(call.measured),
                "none" if call.eager is None else readable_size(call.eager),
                "" if call.difference is None else f"{call.difference:+d}",
                readable_size(call.inside),
                call.name,
                call.source,
            )
            for call in chosen[:LISTED]
        ]
        return [("measured", "eager", "difference", "inside", "call", "source"), *rows]
