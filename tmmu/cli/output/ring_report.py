"""The report of ``tmmu ring`` as values; text and JSON are renderings of a ``RingReport``."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tmmu.cli.output.render import size
from tmmu.codec.printable import align_columns
from tmmu.driver import Compiled
from tmmu.errors import InternalError, PlanError
from tmmu.ir.ring import POLICIES, Block, Ring
from tmmu.planner.ring.figures import PPM, Figures, VisitTiming, figures_of, first_pass_ns, simulate
from tmmu.planner.ring.least_capacity import least_busy_capacity, least_capacity
from tmmu.planner.ring.prepare import RingRequest, plan_ring, problem_of
from tmmu.planner.ring.problem import RingProblem
from tmmu.planner.ring.profile import Profile

SIMULATED_PASSES: Final = 3
"""Passes that are simulated. The last is shown: by then the head start of the first is used up."""
LIMITS: Final = {"link": "the link", "compute": "computing", "capacity": "capacity: copies wait for room"}
POLICY_HEADING: Final = ("policy", "time per pass", "moved", "bandwidth", "depth", "limit")
PASS_HEADING: Final = ("steady pass", "copy from", "to", "ops from", "to")


@dataclass(frozen=True, slots=True, kw_only=True)
class RingReport:
    """A ring and its figures, figures of every policy that fits, least budgets in bytes, and simulated visits."""

    model: str
    ring: Ring
    figures: Figures
    policies: tuple[tuple[str, Ring, Figures], ...]
    first_pass_ns: int
    least_budget: int | None
    busy_budget: int
    profile: Profile
    timings: tuple[VisitTiming, ...]


def report_of(compiled: Compiled, request: RingRequest, *, simulated: bool) -> RingReport:
    """The report on the ring of a plan that was made by ``request``."""
    problem, ring = problem_of(compiled.graph, compiled.plan, request.profile), compiled.plan.ring
    if ring is None:
        raise InternalError("a plan that was given a ring has none")
    return RingReport(
        model=compiled.graph.notes.name,
        ring=ring,
        figures=figures_of(problem, ring),
        policies=tuple(_policies(problem, request, ring)),
        first_pass_ns=first_pass_ns(problem, ring),
        least_budget=least_capacity(problem, request.policy, request.depth),
        busy_budget=least_busy_capacity(problem, request.depth),
        profile=request.profile,
        timings=simulate(problem, ring, SIMULATED_PASSES) if simulated else (),
    )


def _policies(problem: RingProblem, request: RingRequest, ring: Ring) -> Iterator[tuple[str, Ring, Figures]]:
    """(policy, ring, figures) of every policy that fits in the budget."""
    for policy in POLICIES:
        try:
            alternative = ring if policy == ring.policy else plan_ring(problem, replace(request, policy=policy))
        except PlanError:
            continue
        yield policy, alternative, figures_of(problem, alternative)


def lines(report: RingReport) -> Iterator[str]:
    """The report as text."""
    yield from _summary(report)
    yield ""
    yield from align_columns("<>>>><", POLICY_HEADING, [_policy_row(*row) for row in report.policies])
    yield ""
    yield from align_columns("<>>>", ("layer", "bytes", "address", ""), _block_rows(report.ring))
    if report.timings:
        yield ""
        yield from align_columns("<>>>>", PASS_HEADING, list(_pass_rows(report)))
    yield ""
    least = "none" if report.least_budget is None else f"{size(report.least_budget)} ({report.least_budget} bytes)"
    yield f"least budget: {least}; {size(report.busy_budget)} ({report.busy_budget} bytes) never to wait for room"
    profile = report.profile
    yield (
        f"predicted for a link of {rate(profile.link)} with {profile.copy_ns} ns per copy, "
        f"{rate(profile.flops, 'FLOP')} and {rate(profile.memory)} of memory"
    )


def _summary(report: RingReport) -> Iterator[str]:
    ring, figures = report.ring, report.figures
    moving, ringed = sum(not block.resident for block in ring.blocks), ring.bytes - ring.resident_bytes
    stays = f"{size(ring.resident_bytes)}, {percent(_resident_ppm(ring))} of the weights"
    yield f"{report.model}: {len(ring.blocks)} layers, {size(ring.model_bytes)} of weights"
    yield (
        f"{ring.policy} ring in {size(ring.capacity)}: {len(ring.blocks) - moving} layers stay ({stays}), "
        f"{moving} stream through {size(ringed)}, depth {ring.depth}"
    )
    passes = f"a pass takes {duration(figures.pass_ns)}, the first one {duration(report.first_pass_ns)}"
    yield f"{passes}: limited by {LIMITS[figures.limit]}"
    yield (
        f"moves {size(figures.bytes_per_pass)} per pass in {duration(figures.link_ns)}, "
        f"computes for {duration(figures.compute_ns)}; overlap {percent(figures.overlap_ppm)}, "
        f"link busy {percent(figures.utilization_ppm)}"
    )
    yield f"effective bandwidth {rate(figures.bandwidth)} over a link of {rate(report.profile.link)}"


def _policy_row(policy: str, ring: Ring, figures: Figures) -> tuple[str, ...]:
    moved = size(figures.bytes_per_pass)
    return (policy, duration(figures.pass_ns), moved, rate(figures.bandwidth), str(ring.depth), figures.limit)


def _block_rows(ring: Ring) -> list[tuple[str, ...]]:
    return [
        (block.name, size(block.bytes), str(block.address), "stays" if block.resident else "streams")
        for block in ring.blocks
    ]


def _pass_rows(report: RingReport) -> Iterator[tuple[str, ...]]:
    """The last simulated pass; times from the start of its first copy."""
    steady = [timing for timing in report.timings if timing.pass_index == SIMULATED_PASSES - 1]
    origin = min(timing.copy_start for timing in steady)
    for timing in steady:
        block = report.ring.blocks[report.ring.visits[timing.visit].block]
        moments = (timing.copy_start, timing.copy_end, timing.start, timing.end)
        yield (block.name, *(duration(moment - origin) for moment in moments))


def record(report: RingReport) -> dict[str, Any]:
    """The report as one JSON object; times in nanoseconds, shares in parts per million."""
    ring = report.ring
    return {
        "model": report.model,
        "policy": ring.policy,
        "budget": ring.capacity,
        "bytes": ring.bytes,
        "depth": ring.depth,
        "resident_bytes": ring.resident_bytes,
        "resident_ppm": _resident_ppm(ring),
        **_figures(report.figures),
        "first_pass_ns": report.first_pass_ns,
        "least_budget": report.least_budget,
        "busy_budget": report.busy_budget,
        "policies": {policy: _figures(figures) for policy, _, figures in report.policies},
        "profile": asdict(report.profile),
        "blocks": [_block(block) for block in ring.blocks],
        "visits": [asdict(visit) for visit in ring.visits],
        "copies": [asdict(copy) for copy in ring.copies],
        "simulated": [_visit_record(timing) for timing in report.timings],
    }


def _block(block: Block) -> dict[str, Any]:
    columns = {name: getattr(block, name) for name in ("name", "bytes", "resident", "address")}
    return columns | {"buffers": [member.buffer for member in block.members]}


def _visit_record(timing: VisitTiming) -> dict[str, int]:
    row: dict[str, int] = asdict(timing)
    return {"turn": row.pop("pass_index"), **row}


def _figures(figures: Figures) -> dict[str, int | str]:
    return {
        "time_per_pass_ns": figures.pass_ns,
        "limit": figures.limit,
        "compute_ns": figures.compute_ns,
        "link_ns": figures.link_ns,
        "model_bytes": figures.model_bytes,
        "bytes_per_pass": figures.bytes_per_pass,
        "bandwidth": figures.bandwidth,
        "link_utilization_ppm": figures.utilization_ppm,
        "overlap_ppm": figures.overlap_ppm,
    }


def _resident_ppm(ring: Ring) -> int:
    return ring.resident_bytes * PPM // max(ring.model_bytes, 1)


def percent(ppm: int) -> str:
    """A share as text, to a tenth of a per cent."""
    return f"{ppm // 10_000}.{ppm // 1000 % 10} %"


def duration(nanoseconds: int) -> str:
    """A time as text, in the largest unit that fits."""
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(nanoseconds) >= scale:
            return f"{nanoseconds / scale:.3f} {unit}"
    return f"{nanoseconds} ns"


def rate(count: int, unit: str = "B") -> str:
    """A rate as text, in decimal units."""
    for prefix, scale in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {prefix}{unit}/s"
    return f"{count} {unit}/s"
