"""``tmmu run``: a model inside its plan, once, and what that took."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tmmu.cli.commands.plan import (
    CaptureSettings,
    cache_line,
    cache_record,
    capture_request,
    capture_settings,
    plan_request,
    quiet,
    refuse_what_does_not_apply,
)
from tmmu.cli.error_boundary import print_json
from tmmu.cli.load import load_plan
from tmmu.cli.options import CaptureOptions, Mode, PlanningOptions, Preset, TokenOptions
from tmmu.cli.output import render
from tmmu.cli.output.progress import progress_bar
from tmmu.cli.parsing import ModelArgument, naming_option, parse_model
from tmmu.driver import Compiled, PlanRequest, RunRequest, plan_cache, run_model
from tmmu.errors import InvalidConfig
from tmmu.ir.plan import Plan
from tmmu.planner.arenas import parse_size, readable_size
from tmmu.planner.ring.prepare import RingRequest

if TYPE_CHECKING:
    from tmmu.runtime.compare.bench import Measurement
    from tmmu.runtime.compare.run import RunReport

SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """One run of ``tmmu run``, every option checked."""

    model: ModelArgument
    capture: CaptureSettings
    plan: PlanRequest
    run: RunRequest
    cache: bool
    json: bool


def run_job(  # noqa: PLR0913 - one parameter per option
    *,
    model: str,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    seed_weights: int,
    weights: Path | None,
    check: bool,
    sanitize: bool,
    bench: bool,
    plan: Path | None,
    ring: bool,
    budget: str | None,
    prefetch: bool,
    as_json: bool,
) -> RunJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    recorded = None if plan is None else load_plan(plan)
    if recorded is not None:
        capture, planning = _options_of_plan(recorded, str(plan), capture, planning)
    argument = parse_model(model)
    if argument.kind == "ir":
        raise InvalidConfig("a graph does not say what its operators are called with", fix="run the model itself")
    refuse_what_does_not_apply(argument, capture)
    ring_request = _ring_of(recorded, ring=ring, budget=budget)
    streams = ring_request is not None or (recorded is not None and recorded.ring is not None)
    if sanitize and streams:
        raise InvalidConfig("--sanitize watches weights that stay", fix="run it without a ring: the ops are the same")
    if not prefetch and not streams:
        raise InvalidConfig("--no-prefetch goes with --ring", fix="give --ring --budget SIZE, or drop it")
    return RunJob(
        model=argument,
        capture=capture_settings(capture, device="cpu"),
        plan=plan_request(capture, planning, token),
        run=RunRequest(
            seed=seed_weights,
            weights=None if weights is None else weights.absolute(),
            check=check,
            sanitize=sanitize,
            bench=bench,
            plan=recorded,
            ring=ring_request,
            prefetch=prefetch,
        ),
        cache=not planning.no_cache,
        json=as_json,
    )


def _options_of_plan(
    plan: Plan, name: str, capture: CaptureOptions, planning: PlanningOptions
) -> tuple[CaptureOptions, PlanningOptions]:
    """The options with the plan's own mode and preset; others that it settles are refused."""
    settled = {"mode": plan.mode, "preset": plan.preset, "arena": None, "nodes": None}
    options = {"mode": capture.mode, "preset": planning.preset, "arena": planning.arena, "nodes": planning.nodes}
    for option, value in options.items():
        if value and value != settled[option]:
            raise InvalidConfig(
                f"--{option} does not go with --plan", fix=f"drop it: {name} says what it was planned for"
            )
    mode, preset = cast("Mode", plan.mode), cast("Preset", plan.preset)
    return replace(capture, mode=mode), replace(planning, preset=preset)


def _ring_of(plan: Plan | None, *, ring: bool, budget: str | None) -> RingRequest | None:
    """The ring that ``--ring --budget SIZE`` asks for."""
    if not ring and budget is None:
        return None
    if not ring or budget is None:
        raise InvalidConfig("--ring and --budget go together", fix="give --ring --budget SIZE")
    if plan is not None:
        raise InvalidConfig("--ring does not go with --plan", fix="plan with tmmu ring, whose plan has its ring in it")
    return RingRequest(capacity=naming_option("--budget", lambda: parse_size(budget)))


def run_run(job: RunJob) -> int:
    """The model has run, and the report is printed; 0."""
    with quiet(), progress_bar() as progress:
        progress("importing torch", 0)
        request = capture_request(job.model, job.capture)
        cache = plan_cache(reverify=True) if job.cache else None
        compiled, ran = run_model(request, job.plan, job.run, progress, cache=cache)
    if job.json:
        print_json(record(job, compiled, ran))
        return 0
    out = render.console()
    render.print_lines(out, lines(job, compiled, ran))
    if out.is_terminal:
        out.print(render.seconds_line(compiled.seconds), style="dim")
        if compiled.cached:
            out.print(cache_line(compiled.cached), style="dim")
    return 0


def record(job: RunJob, compiled: Compiled, ran: "RunReport") -> dict[str, Any]:
    """The report as one JSON object."""
    return {
        "name": compiled.graph.notes.name,
        "device": job.capture.device,
        "mode": job.plan.mode,
        "preset": job.plan.preset,
        "plan": compiled.plan.digest.hex(),
        **asdict(ran),
        "cache": cache_record(compiled.cached),
        "seconds": dict(compiled.seconds),
    }


def lines(job: RunJob, compiled: Compiled, ran: "RunReport") -> Iterator[str]:
    """The report as a person reads it."""
    whence = _whence(job, ran.weights)
    yield f"{compiled.graph.notes.name} ran on {job.capture.device}: {ran.steps} ops, {whence}"
    yield f"inputs   {_few(ran.inputs)}"
    yield f"outputs  {_few(ran.outputs)}"
    yield ""
    rows = [(name, readable_size(size)) for name, size in ran.peak_bytes.items()]
    yield from render.align_columns("<>", ("segment", "peak"), [*rows, ("inputs", readable_size(ran.input_bytes))])
    yield ""
    table = [(u.operator, str(u.calls), readable_size(u.bytes), readable_size(u.peak)) for u in ran.unplanned[:SHOWN]]
    if table:
        yield from render.align_columns("<>>>", ("allocates inside", "calls", "bytes", "at once"), table)
        more = ran.unplanned[SHOWN:]
        if more:
            yield f"and {len(more)} more operators, {readable_size(max(u.peak for u in more))} at once at most"
    else:
        yield "no operator allocates inside"
    yield from _streaming_lines(ran)
    yield from _held_against(ran, check=job.run.check)
    if ran.bench:
        yield ""
        yield from render.align_columns("<>>>", ("step", "time", "allocations", "peak"), list(map(_row, ran.bench)))


def _whence(job: RunJob, weights: Mapping[str, int]) -> str:
    """Where the weights come from; how many from where if that is more than one place."""
    named = {"model": job.model.path.name, "seed": f"seed {job.run.seed}"}
    if job.run.weights:
        named = {"file": job.run.weights.name} | named
    counts = [(place, weights[kind]) for kind, place in named.items() if weights.get(kind)]
    if len(counts) > 1:
        return "weights: " + " and ".join(f"{count} of {place}" for place, count in counts)
    return f"weights of {counts[0][0] if counts else named['seed']}"


def _streaming_lines(ran: "RunReport") -> Iterator[str]:
    if ran.ring:
        names = ("host_bytes", "resident_bytes", "pass_bytes")
        host, stay, moves = (readable_size(ran.ring[name]) for name in names)
        yield ""
        yield f"streamed: of {host} of weights on the host {stay} stay on the device, and {moves} move in a pass"


def _held_against(ran: "RunReport", *, check: bool) -> Iterator[str]:
    if ran.sanitized or check:
        yield ""
    if ran.sanitized:
        yield f"sanitized: {ran.steps} ops, {ran.sanitized} comparisons of a buffer, no fault"
    if check:
        yield f"checked: {ran.checked} outputs and states have the bits of a run without a plan"
        near_text = f", {ran.near} are near" if ran.near else ""
        yield f"checked: {ran.same} outputs and states have the bits of the model itself{near_text}"


def _row(measurement: "Measurement") -> tuple[str, ...]:
    if measurement.failed:
        return (measurement.way, "failed", "", measurement.failed)
    return (
        measurement.way,
        f"{measurement.milliseconds:.3f} ms",
        str(measurement.allocations),
        readable_size(measurement.peak_bytes),
    )


def _few(items: tuple[str, ...]) -> str:
    more = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {more} more" if more > 0 else "") if items else "none"
