"""Plans that a test suite has recorded, and by how much a new plan has grown beyond them.

A recorded plan is ``NAME.plan.cbor`` with its graph ``NAME.ir.cbor``, as ``tmmu plan`` writes them; ``tmmu diff`` takes
it too. Without torch.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tmmu.api.memory_plan import MemoryPlan
from tmmu.compare.diff import difference
from tmmu.compare.match import PlannedGraph
from tmmu.errors import InvalidConfig, PeakOverLimit, PlanMismatch
from tmmu.planner.arenas import parse_size, readable_size

if TYPE_CHECKING:
    from tmmu.compare.diff import Change

FOLDER: Final = "memory_plans"
"""Beside the test file."""
_PERCENT: Final = re.compile(r"([0-9]{1,6})(?:\.([0-9]{1,4}))?\s*%", re.ASCII)
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.=-]+")
_LISTED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthLimit:
    """How much more is allowed: so many ``bytes``, or parts per million of what was recorded."""

    text: str
    bytes: int | None
    ppm: int = 0

    def is_passed(self, before: int, after: int) -> bool:
        """Whether ``after`` is over the limit."""
        more = after - before
        return more > self.bytes if self.bytes is not None else more * 1_000_000 > before * self.ppm


def parse_growth(limit: str | int) -> GrowthLimit:
    """``"1%"``, a size such as ``"64MiB"``, or bytes; ``INVALID_CONFIG`` for anything else."""
    if type(limit) is int and limit >= 0:
        return GrowthLimit(text=readable_size(limit), bytes=limit)
    if not isinstance(limit, str):
        raise InvalidConfig(f"{limit!r:.80} is no limit", fix='write "1%", a size such as "64MiB", or bytes')
    percentage = _PERCENT.fullmatch(limit.strip())
    if percentage:
        return GrowthLimit(text=limit, bytes=None, ppm=int(percentage[1] + (percentage[2] or "").ljust(4, "0")))
    return GrowthLimit(text=limit, bytes=parse_size(limit))


def recorded_path(test_file: Path, name: str) -> Path:
    """Where the plan ``name`` of a test file lies; what a file name may not have is ``-``."""
    return test_file.parent / FOLDER / f"{test_file.stem}.{_NOT_IN_NAMES.sub('-', name).strip('-')}.plan.cbor"


def require_no_growth(before: MemoryPlan, after: MemoryPlan, limit: GrowthLimit, *, name: str) -> None:
    """``PEAK_OVER_LIMIT`` where a figure of either run is over the limit, and the lines that make the difference."""
    for what in ("target", "mode"):
        was, now = _setting(before, what), _setting(after, what)
        if was != now:
            raise PlanMismatch(
                f"{name} was recorded for {what} {was}, and is now planned for {now}", fix="record it again"
            )
    over = {figure: pair for figure, pair in _figures(before, after).items() if limit.is_passed(*pair)}
    if not over:
        return
    texts = [
        f"{figure} by {readable_size(b - a)} ({readable_size(a)} to {readable_size(b)})"
        for figure, (a, b) in over.items()
    ]
    causes = "".join(f"\n  {line}" for line in _causes(before, after))
    raise PeakOverLimit(
        f"more memory than {name} says: {', '.join(texts)}, limit {limit.text}{causes}",
        fix="make it smaller, or record the new plan: pytest --tmmu-update",
        over={figure: b - a for figure, (a, b) in over.items()},
        limit=limit.text,
    )


def require_steady(plan: MemoryPlan, limit: GrowthLimit) -> None:
    """``PEAK_OVER_LIMIT`` where each run of a step leaves more than it found; a model leaves nothing."""
    growth = plan.first_step.growth if plan.first_step else 0
    if limit.is_passed(0, growth):
        raise PeakOverLimit(
            f"each step leaves {growth} bytes ({readable_size(growth)}) more than it found, allowed {limit.text}",
            fix="drop what a step keeps, such as losses that still hold their graph, or allow it: per_step=...",
            over={"per_step": growth},
            limit=limit.text,
        )


def _setting(plan: MemoryPlan, what: str) -> str:
    return plan.graph.target if what == "target" else plan.plan.mode


def _figures(before: MemoryPlan, after: MemoryPlan) -> dict[str, tuple[int, int]]:
    """Total and stack of both runs, before and after."""
    return {
        "total as it is": (before.eager.total_bytes, after.eager.total_bytes),
        "stack as it is": (before.eager.stack_bytes, after.eager.stack_bytes),
        "total inside the plan": (before.total, after.total),
        "stack inside the plan": (before.stack, after.stack),
    }


def _causes(before: MemoryPlan, after: MemoryPlan) -> Iterator[str]:
    """The largest changes at the peak of the plans, and of what is there all the time."""
    changes = difference(*(PlannedGraph(graph=side.graph, plan=side.plan) for side in (before, after)))
    rows = sorted((*changes.peak.changes, *changes.persistent), key=lambda change: -change.bytes)
    yield from map(_cause_text, [change for change in rows if change.bytes > 0][:_LISTED])


def _cause_text(change: "Change") -> str:
    origin = change.origin
    maker = " ".join(filter(None, (origin.name or origin.op, origin.source and f"at {origin.source}")))
    return f"+{readable_size(change.bytes)}: {maker} {change.why}"
