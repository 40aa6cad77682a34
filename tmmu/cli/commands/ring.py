"""``tmmu ring``: how a model's weights stream through a budget, how long a pass takes, and what limits it."""

from dataclasses import dataclass
from pathlib import Path

from tmmu.cli.commands.plan import (
    CaptureSettings,
    PlanOptions,
    capture_settings,
    compile_argument,
    plan_request,
    refuse_what_does_not_apply,
)
from tmmu.cli.error_boundary import print_json
from tmmu.cli.output import render
from tmmu.cli.output.ring_report import lines, record, report_of
from tmmu.cli.parsing import (
    ModelArgument,
    graph_output,
    naming_option,
    parse_model,
    plan_path,
    refuse,
    require_writable,
)
from tmmu.codec.files import write_together
from tmmu.driver import PlanRequest, with_ring
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import encode_graph
from tmmu.ir.plan import encode_plan
from tmmu.planner.arenas import parse_size
from tmmu.planner.ring.prepare import RingRequest
from tmmu.planner.ring.profile import Profile, parse_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class RingJob:
    """One run of ``tmmu ring``, every option checked. Files are written where ``plan`` names one."""

    model: ModelArgument
    capture: CaptureSettings
    request: PlanRequest
    ring: RingRequest
    folder: Path
    plan: Path | None
    ir: Path | None
    cache: bool
    simulate: bool
    json: bool


def ring_job(  # noqa: PLR0913 - one parameter per option
    *,
    options: PlanOptions,
    budget: str,
    policy: str,
    depth: int,
    device_link: str | None,
    copy_cost: int,
    device_flops: str | None,
    device_memory: str | None,
    simulate: bool,
) -> RingJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    model = parse_model(options.model)
    refuse_what_does_not_apply(model, options.capture)
    output = options.output
    plan = None if output is None else require_writable(plan_path(output, model), "--output", never=model.path)
    if plan is None:
        refuse({"--ir": options.ir}, "only with --output")
    graph = None if plan is None else graph_output(options.ir, plan)
    rates = {
        "link": _rate("--device-link", device_link, "B"),
        "flops": _rate("--device-flops", device_flops, "FLOP"),
        "memory": _rate("--device-memory", device_memory, "B"),
    }
    profile = Profile(copy_ns=copy_cost, **{name: rate for name, rate in rates.items() if rate is not None})
    return RingJob(
        model=model,
        capture=capture_settings(options.capture),
        request=plan_request(options.capture, options.planning, options.token),
        ring=RingRequest(capacity=_budget(budget), policy=policy, depth=depth, profile=profile),
        folder=Path.cwd(),
        plan=plan,
        ir=None if graph is None else require_writable(graph, "--ir", never=model.path),
        cache=not options.planning.no_cache,
        simulate=simulate,
        json=options.as_json,
    )


def _rate(option: str, text: str | None, unit: str) -> int | None:
    return None if text is None else naming_option(option, lambda: parse_rate(text, unit))


def _budget(text: str) -> int:
    size = naming_option("--budget", lambda: parse_size(text))
    if not size:
        raise InvalidConfig("--budget: 0 holds nothing", fix="give a size, such as 18GiB")
    return size


def run_ring(job: RingJob) -> int:
    """The schedule is printed, and written with its plan where a file is named; 0."""
    compiled = compile_argument(job.model, job.capture, job.request, keep=job.cache)
    streamed = with_ring(compiled, job.ring, token=job.request.token)
    if job.plan is not None:
        files = [(job.folder / job.plan, encode_plan(streamed.plan))]
        if job.ir is not None:
            files.append((job.folder / job.ir, encode_graph(streamed.graph)))
        write_together(files)
    report = report_of(streamed, job.ring, simulated=job.simulate)
    written = [str(path) for path in (job.plan, job.ir) if path]
    if job.json:
        names = {"plan": job.plan, "ir": job.ir}
        print_json(record(report) | {"files": {name: path and str(path) for name, path in names.items()}})
        return 0
    out = render.console()
    render.print_lines(out, [*lines(report), *([f"wrote {' and '.join(written)}"] if written else [])])
    return 0
