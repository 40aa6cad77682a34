"""``tmmu ring``: how a model's weights stream through a budget, how long a pass takes, and what limits it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tmmu.cli import render
from tmmu.cli.boundary import print_json
from tmmu.cli.options import Target, graph_output, named, parse_target, plan_path, refuse, require_writable
from tmmu.cli.plan import (
    CaptureOptions,
    PlanOptions,
    capture_options,
    compile_target,
    plan_request,
    refuse_what_does_not_apply,
)
from tmmu.compile import Compiled, PlanRequest, with_ring
from tmmu.errors import InvalidConfig, PlanError
from tmmu.ir.files import write_together
from tmmu.ir.graph import encode_graph
from tmmu.ir.plan import encode_plan
from tmmu.ir.ring import POLICIES, Ring
from tmmu.planner.arenas import parse_size
from tmmu.planner.ring.figures import Figures, Turn, figures_of, first_pass_ns, simulate
from tmmu.planner.ring.least import least_busy_capacity, least_capacity
from tmmu.planner.ring.prepare import RingRequest, plan_ring, problem_of
from tmmu.planner.ring.problem import RingProblem
from tmmu.planner.ring.profile import Profile, parse_rate

DEPTH_MAX: Final = 1 << 16
PPM: Final = 1_000_000
STEADY: Final = 3
"""Passes that are simulated; the last one is shown, by which the first one's head start is used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingJob:
    """One run of ``tmmu ring``, every option checked. Files are written where ``plan`` names one."""

    target: Target
    capture: CaptureOptions
    request: PlanRequest
    ring: RingRequest
    folder: Path
    plan: Path | None
    ir: Path | None
    cache: bool
    simulate: bool
    json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is printed: the ring, its figures, those of every policy that fits, and the least budgets."""

    model: str
    problem: RingProblem
    ring: Ring
    figures: Figures
    others: tuple[tuple[str, Ring, Figures], ...]
    first_pass_ns: int
    least: int | None
    busy: int


def ring_job(  # noqa: PLR0913 - one parameter per option
    *,
    budget: str,
    policy: str,
    depth: int,
    device_link: str | None,
    copy_cost: int,
    device_flops: str | None,
    device_memory: str | None,
    simulate: bool,
    output: str | None,
    ir: str | None,
    as_json: bool,
    **given: Any,
) -> RingJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    options = PlanOptions(**given, output=output, ir=ir, reserve=None, as_json=as_json)
    target = parse_target(options.target)
    refuse_what_does_not_apply(target, options)
    plan = None if output is None else require_writable(plan_path(output, target), "--output", never=target.path)
    if plan is None:
        refuse({"--ir": ir}, "only with --output")
    graph = None if plan is None else graph_output(ir, plan)
    rates = {
        "link": _rate("--device-link", device_link, "B"),
        "flops": _rate("--device-flops", device_flops, "FLOP"),
        "memory": _rate("--device-memory", device_memory, "B"),
    }
    profile = Profile(copy_ns=copy_cost, **{name: rate for name, rate in rates.items() if rate is not None})
    return RingJob(
        target=target,
        capture=capture_options(options),
        request=plan_request(options),
        ring=RingRequest(capacity=_budget(budget), policy=policy, depth=depth, profile=profile),
        folder=Path.cwd(),
        plan=plan,
        ir=None if graph is None else require_writable(graph, "--ir", never=target.path),
        cache=not options.no_cache,
        simulate=simulate,
        json=as_json,
    )


def _rate(option: str, text: str | None, unit: str) -> int | None:
    return None if text is None else named(option, lambda: parse_rate(text, unit))


def _budget(text: str) -> int:
    size = named("--budget", lambda: parse_size(text))
    if not size:
        raise InvalidConfig("--budget: 0 holds nothing", fix="give a size, such as 18GiB")
    return size


def run_ring(job: RingJob) -> int:
    """The schedule is printed, and written with its plan where a file is named; 0."""
    compiled = compile_target(job.target, job.capture, job.request, keep=job.cache)
    made = with_ring(compiled, job.ring, token=job.request.token)
    if job.plan is not None:
        files = [(job.folder / job.plan, encode_plan(made.plan))]
        if job.ir is not None:
            files.append((job.folder / job.ir, encode_graph(made.graph)))
        write_together(files)
    report = _report(job, made)
    if job.json:
        print_json(record(job, report))
        return 0
    out = render.console()
    render.print_lines(out, lines(job, report))
    if job.plan is not None:
        render.print_lines(out, [f"wrote {' and '.join(str(path) for path in (job.plan, job.ir) if path)}"])
    return 0


def _report(job: RingJob, made: Compiled) -> Report:
    problem = problem_of(made.graph, made.plan, job.ring.profile)
    ring = made.plan.ring
    if ring is None:
        raise InvalidConfig("the plan has no ring")
    return Report(
        model=made.graph.notes.name,
        problem=problem,
        ring=ring,
        figures=figures_of(problem, ring),
        others=tuple(_others(job, problem, ring)),
        first_pass_ns=first_pass_ns(problem, ring),
        least=least_capacity(problem, job.ring.policy, job.ring.depth),
        busy=least_busy_capacity(problem, job.ring.depth),
    )


def _others(job: RingJob, problem: RingProblem, ring: Ring) -> Iterator[tuple[str, Ring, Figures]]:
    """The schedule of every policy that has one in this budget."""
    for policy in POLICIES:
        try:
            request = RingRequest(capacity=job.ring.capacity, policy=policy, depth=job.ring.depth)
            found = ring if policy == ring.policy else plan_ring(problem, request)
        except PlanError:
            continue
        yield policy, found, figures_of(problem, found)


def lines(job: RingJob, report: Report) -> Iterator[str]:
    """The report as a person reads it."""
    ring, figures, profile = report.ring, report.figures, job.ring.profile
    moving = sum(not block.resident for block in ring.blocks)
    yield f"{report.model}: {len(ring.blocks)} layers, {render.size(ring.model_bytes)} of weights"
    yield (
        f"{ring.policy} ring in {render.size(ring.capacity)}: {len(ring.blocks) - moving} layers stay "
        f"({render.size(ring.resident_bytes)}, {_percent(_share(ring.resident_bytes, ring.model_bytes))} of the "
        f"weights), {moving} stream through {render.size(ring.bytes - ring.resident_bytes)}, depth {ring.depth}"
    )
    yield (
        f"a pass takes {_time(figures.time)}, the first one {_time(report.first_pass_ns)}: "
        f"limited by {_LIMITS[figures.limit]}"
    )
    yield (
        f"moves {render.size(figures.bytes_per_pass)} per pass in {_time(figures.link_ns)}, "
        f"computes for {_time(figures.compute_ns)}; overlap {_percent(figures.overlap_ppm)}, "
        f"link busy {_percent(figures.utilization_ppm)}"
    )
    yield f"effective bandwidth {_rate_of(figures.bandwidth)} over a link of {_rate_of(profile.link)}"
    yield ""
    yield from render.aligned("<>>>><", POLICY_HEADING, [_policy_row(*row) for row in report.others])
    yield ""
    yield from render.aligned("<>>>", ("layer", "bytes", "address", ""), _block_rows(ring))
    if job.simulate:
        yield ""
        yield from render.aligned("<>>>>", TURN_HEADING, list(_turn_rows(report)))
    yield ""
    yield f"least budget: {_least(report)}; {render.size(report.busy)} ({report.busy} bytes) never to wait for room"
    yield (
        f"predicted for a link of {_rate_of(profile.link)} with {profile.copy_ns} ns per copy, "
        f"{_rate_of(profile.flops, 'FLOP')} and {_rate_of(profile.memory)} of memory"
    )


_LIMITS: Final = {"link": "the link", "compute": "computing", "capacity": "capacity: copies wait for room"}
POLICY_HEADING: Final = ("policy", "time per pass", "moved", "bandwidth", "depth", "limit")
TURN_HEADING: Final = ("steady pass", "copy from", "to", "ops from", "to")


def _policy_row(policy: str, ring: Ring, figures: Figures) -> tuple[str, ...]:
    return (
        policy,
        _time(figures.time),
        render.size(figures.bytes_per_pass),
        _rate_of(figures.bandwidth),
        str(ring.depth),
        figures.limit,
    )


def _block_rows(ring: Ring) -> list[tuple[str, ...]]:
    return [
        (block.name, render.size(block.bytes), str(block.address), "stays" if block.resident else "streams")
        for block in ring.blocks
    ]


def _turn_rows(report: Report) -> Iterator[tuple[str, ...]]:
    """The last of a few passes, times from the start of its first copy."""
    turns = simulate(report.problem, report.ring, STEADY)
    steady = [turn for turn in turns if turn.turn == STEADY - 1]
    origin = min((turn.copy_start for turn in steady), default=0)
    for turn in steady:
        block = report.ring.blocks[report.ring.visits[turn.visit].block]
        yield (block.name, *(_time(at - origin) for at in _moments(turn)))


def _moments(turn: Turn) -> tuple[int, int, int, int]:
    return turn.copy_start, turn.copy_end, turn.start, turn.end


def _least(report: Report) -> str:
    return "none" if report.least is None else f"{render.size(report.least)} ({report.least} bytes)"


def record(job: RingJob, report: Report) -> dict[str, Any]:
    """The report as one JSON object; times in nanoseconds, rounded up, shares in parts per million."""
    ring = report.ring
    return {
        "model": report.model,
        "policy": ring.policy,
        "budget": ring.capacity,
        "bytes": ring.bytes,
        "depth": ring.depth,
        "resident_bytes": ring.resident_bytes,
        "resident_ppm": _share(ring.resident_bytes, ring.model_bytes),
        **_figures(report.figures),
        "first_pass_ns": report.first_pass_ns,
        "least_budget": report.least,
        "busy_budget": report.busy,
        "policies": {policy: _figures(figures) for policy, _, figures in report.others},
        "profile": asdict(job.ring.profile),
        "blocks": [
            {
                "name": block.name,
                "bytes": block.bytes,
                "resident": block.resident,
                "address": block.address,
                "buffers": [member.buffer for member in block.members],
            }
            for block in ring.blocks
        ],
        "visits": [asdict(visit) for visit in ring.visits],
        "copies": [asdict(copy) for copy in ring.copies],
        "simulated": [asdict(turn) for turn in simulate(report.problem, ring, STEADY)] if job.simulate else [],
        "files": {"plan": _text(job.plan), "ir": _text(job.ir)},
    }


def _figures(figures: Figures) -> dict[str, int | str]:
    return {
        "time_per_pass_ns": figures.time,
        "limit": figures.limit,
        "compute_ns": figures.compute_ns,
        "link_ns": figures.link_ns,
        "model_bytes": figures.model_bytes,
        "bytes_per_pass": figures.bytes_per_pass,
        "bandwidth": figures.bandwidth,
        "link_utilization_ppm": figures.utilization_ppm,
        "overlap_ppm": figures.overlap_ppm,
    }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _share(part: int, whole: int) -> int:
    return part * PPM // whole if whole else PPM


def _percent(ppm: int) -> str:
    return f"{ppm // 10_000}.{ppm // 1000 % 10} %"


def _time(nanoseconds: int) -> str:
    """A time as a person reads it."""
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(nanoseconds) >= scale:
            return f"{nanoseconds / scale:.3f} {unit}"
    return f"{nanoseconds} ns"


def _rate_of(rate: int, unit: str = "B") -> str:
    """A rate as a person reads it, in decimal units."""
    for prefix, scale in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if rate >= scale:
            return f"{rate / scale:.1f} {prefix}{unit}/s"
    return f"{rate} {unit}/s"
