"""``tmmu fit``: a budget in, a plan out that stays below it and computes the same."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.option_groups import OptionGroup, expand_groups
from tmmu.cli.options import CaptureOptions, FusionOptions, PlanningOptions, TokenOptions
from tmmu.cli.output import max_report, render
from tmmu.cli.output.fit_report import FitReport, lines, record
from tmmu.cli.output.max_report import MaxReport
from tmmu.cli.output.progress import progress_bar
from tmmu.cli.parsing import parse_file, parse_model, parse_option, parse_reserve, refuse, require_writable
from tmmu.cli.planning import ModelRequest, compile_request, model_request, quiet, trace_request
from tmmu.cli.sizes import at_size, require_axis, sizes_of_request
from tmmu.codec.files import is_special, write_together
from tmmu.codec.fitted import FIT_SUFFIX, fitted_paths, is_rewritten, write_fitted
from tmmu.codec.load import PLAN_SUFFIX, load_plan
from tmmu.device_fit import DeviceFitting, fit_on_device, max_on_device
from tmmu.driver import Compiled, kernel_folder
from tmmu.errors import BudgetTooSmall, InvalidConfig, TmmuError
from tmmu.ir.graph import FUSED_NAMESPACE, Graph
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program
from tmmu.planner.arenas import parse_size, readable_size
from tmmu.planner.fit.fit_graph import FitRequest, Fitting, fit_graph
from tmmu.planner.fit.fit_step import PPM, FittedStep, PlanSettings
from tmmu.planner.fit.forms import ALL_NAMES, LEVER_NAMES, OFFLOAD, ON_REQUEST
from tmmu.planner.sizes.first_sizes import size_unit
from tmmu.planner.sizes.max_size import SizeRequest
from tmmu.report.contents import report_contents
from tmmu.report.curve_figure import CurveFigure
from tmmu.report.page import page_html
from tmmu.summary.budget import stack_room
from tmmu.summary.plan_summary import memory_of

app = typer.Typer(add_completion=False)
MOST_PERCENT: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCommandOptions(OptionGroup):
    """Options of ``tmmu fit`` alone."""

    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Stay below this much of a device with all of it: weights, state, inputs, the step and --reserve. "
            "Default: no limit.",
        ),
    ] = None
    step: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Stay below this with the stack alone: activations and gradients. Default: no limit."
        ),
    ] = None
    at_most: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Take at most this much more time, as estimated. Default: no limit."),
    ] = None
    only: Annotated[
        str | None,
        typer.Option(
            metavar="LEVERS",
            help=f"Use only these of {', '.join(ALL_NAMES)}. Default: all but {', '.join(ON_REQUEST)}.",
        ),
    ] = None
    allow: Annotated[
        Literal["near"] | None,
        typer.Option(
            help="Allow rewrites whose results are near those of the step, not equal: sums over parts. Default: none."
        ),
    ] = None
    curve: Annotated[
        bool, typer.Option("--curve", help="Print how few bytes of the step are live, by the extra time. Default: no.")
    ] = False
    largest: Annotated[
        str | None,
        typer.Option(
            "--max",
            metavar="NAME",
            help="Find the largest batch or seq (or number of --set) that fits, as the step is and with the levers; "
            "nothing is written. Default: fit the size that the model has.",
        ),
    ] = None
    reserve: options.Reserve = None
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="NAME",
            help="Write NAME.fit.plan.cbor, NAME.fit.ir.cbor and NAME.ir.cbor. Default: the model's name.",
        ),
    ] = None
    report: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the fitted plan as an HTML file to look at too, with its curve as a picture. Default: none.",
        ),
    ] = None
    as_json: options.Json = False


@app.command()
@expand_groups
def fit(  # noqa: PLR0913 - the groups of options of one command
    *,
    model: options.Model,
    limits: FitCommandOptions,
    capture: CaptureOptions,
    planning: PlanningOptions,
    fusion: FusionOptions,
    token: TokenOptions,
) -> options.Run:
    """Make MODEL's step fit in a budget, bit for bit the same, and say what that costs."""
    return lambda: run_fit(fit_job(model, capture, planning, token, limits, fusion=fusion))


@dataclass(frozen=True, slots=True, kw_only=True)
class FitJob:
    """One run of ``tmmu fit``, every option checked; sizes in bytes, ``at_most`` in ppm.

    ``shown_folder``: ``folder`` as it was named. Options as they were written: ``model_options`` are those of the model
    and the token; ``limit_options`` all others that a fit of another size has.
    """

    request: ModelRequest
    budget: int | None
    step: int | None
    at_most: int | None
    levers: tuple[str, ...]
    near: bool
    reserve: int
    folder: Path
    shown_folder: Path
    name: str
    curve: bool
    page: Path | None
    axis: str | None
    model_options: tuple[str, ...]
    limit_options: tuple[str, ...]
    json: bool

    @property
    def writes(self) -> bool:
        """Whether a plan is asked for, and not the curve alone."""
        return not (self.budget is None and self.step is None and self.at_most is None)


def fit_job(  # noqa: PLR0913 - the groups of options of one command
    text: str,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    limits: FitCommandOptions,
    *,
    fusion: FusionOptions | None = None,
) -> FitJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    model = parse_model(text)
    request = model_request(model, capture, planning, token, fusion=fusion)
    if request.plan.mode == "forward":
        raise InvalidConfig("--mode forward: half a step is not fitted", fix="use --mode backward, or inference")
    if limits.budget is not None and limits.step is not None:
        raise InvalidConfig("--budget and --step are two limits for one step", fix="give one of them")
    names_a_limit = limits.budget is not None or limits.step is not None or limits.at_most is not None
    if not names_a_limit and not limits.curve and limits.largest is None:
        raise InvalidConfig(
            "no limit is named", fix="give --budget SIZE, --step SIZE or --at-most PERCENT, or --curve to see them all"
        )
    levers = LEVER_NAMES if limits.only is None else _parse_levers(limits.only)
    if OFFLOAD in levers and (limits.largest is not None or (limits.budget is None and limits.step is None)):
        raise InvalidConfig(
            f"--only: {OFFLOAD} says how much leaves the device by a limit for one size",
            fix="add --budget SIZE or --step SIZE, without --max, or leave it out",
        )
    if request.plan.fuse and (limits.largest is not None or not names_a_limit):
        raise InvalidConfig(
            "--fuse: ops of a step that is written are fused, and none is", fix="leave it out, or fit one size: --step"
        )
    axis = None if limits.largest is None else _axis(request, limits)
    path = Path(model.name) if limits.output is None else parse_file(limits.output, "--output")
    path = path / model.name if path.is_dir() else path
    if is_special(path):
        raise InvalidConfig(f"--output: {path} is no file, and three are written", fix="name a folder, or a plan in it")
    if not path.parent.is_dir():
        raise InvalidConfig(f"--output: no folder {path.parent}", fix="make it first, or name another")
    return FitJob(
        request=request,
        budget=_size("--budget", limits.budget),
        step=_size("--step", limits.step),
        at_most=None if limits.at_most is None else _parse_percent(limits.at_most),
        levers=levers,
        near=limits.allow == "near",
        reserve=parse_reserve(limits.reserve),
        folder=path.parent.absolute(),
        shown_folder=path.parent,
        name=_name(path),
        curve=limits.curve,
        page=_page(limits.report, path, model.path),
        axis=axis,
        model_options=(*capture.words(), *token.words()),
        limit_options=(*planning.words(), *limits.words(without={"--max", "--json"})),
        json=limits.as_json,
    )


def _name(path: Path) -> str:
    """NAME of the files, which the output's path may name as the plan; that of a rewritten graph stays as it is."""
    stem = path.name.removesuffix(PLAN_SUFFIX)
    return stem if stem == path.name else stem.removesuffix(FIT_SUFFIX)


def _axis(request: ModelRequest, limits: FitCommandOptions) -> str:
    """What ``--max`` names; refuses what it makes no sense without, or with."""
    if limits.budget is None and limits.step is None:
        raise InvalidConfig("--max: no limit in bytes is named", fix="give --budget SIZE or --step SIZE")
    written = {"--curve": limits.curve or None, "--report": limits.report, "--output": limits.output}
    refuse(written, "nothing is written with --max", fix="leave it out, and fit the size that is found")
    return require_axis(request, limits.largest or "")


def _page(text: str | None, output: Path, model: Path) -> Path | None:
    """Where the HTML file goes; ``INVALID_CONFIG`` for a file that another one has."""
    if text is None:
        return None
    page = require_writable(parse_file(text, "--report"), "--report", never=model)
    if page.absolute() in {path.absolute() for path in fitted_paths(output.parent, _name(output))}:
        raise InvalidConfig(f"--report names {page}, which the plan or a graph has", fix="name another file")
    return page.absolute()


def _size(option: str, text: str | None) -> int | None:
    return None if text is None else parse_option(option, lambda: parse_size(text))


def _parse_percent(text: str) -> int:
    """``10%`` or ``2.5``, in ppm, rounded down."""
    number = text.strip().removesuffix("%").strip()
    whole, point, decimals = number.partition(".")
    digits = (whole + decimals).isascii() and (whole + decimals).isdigit() and len(decimals) <= 6
    if not digits or not whole or (point and not decimals) or int(whole) > MOST_PERCENT:
        raise InvalidConfig(f"--at-most: {text!r:.40} is no share up to {MOST_PERCENT} %", fix="for example 10%")
    return (int(whole) * 10**6 + int(decimals.ljust(6, "0"))) * PPM // 10**8


def _parse_levers(text: str) -> tuple[str, ...]:
    names, all_names = [name.strip() for name in text.split(",")], ", ".join(ALL_NAMES)
    if not any(names):
        raise InvalidConfig("--only: no lever is named", fix=f"use some of {all_names}")
    if not all(names):
        raise InvalidConfig(f"--only: {text!r:.60} has a comma too many", fix="write it without, as takeover,order")
    unknown = [name for name in names if name not in ALL_NAMES]
    if unknown:
        raise InvalidConfig(f"--only: no lever {unknown[0]!r:.40}", fix=f"use some of {all_names}")
    return tuple(name for name in ALL_NAMES if name in names)


def run_fit(job: FitJob) -> int:
    """Write the files if a limit is named, and print what was found; returns 0."""
    if job.axis is not None:
        return _run_max(job, job.axis)
    compiled, program = trace_request(job.request) if job.request.plan.fuse else (compile_request(job.request), None)
    _require_whole_step(compiled)
    memory = memory_of(compiled.plan, compiled.graph)
    with progress_bar() as progress:
        progress("fitting", len(compiled.graph.ops))
        found = _fit(job, compiled, program)
    step = found.fitting.fitted if program is None else _fuse(job, compiled, program, found.fitting.fitted)
    is_fused = step.plan.fit is not None and step.plan.fit.fused is not None
    files: tuple[Path, ...] = ()
    beside = [] if job.page is None else [(job.page, _page_bytes(job, found.fitting, step))]
    replaced = _plan_of_another_graph(job, compiled.graph) if job.writes else None
    if job.writes:
        token = job.request.plan.token
        fused = step.graph if is_fused else None
        write_fitted(job.folder, job.name, base=compiled.graph, plan=step.plan, token=token, fused=fused, beside=beside)
        files = fitted_paths(job.shown_folder, job.name)
    elif beside:
        write_together(beside)
    report = FitReport(
        compiled=compiled,
        found=found,
        step=step,
        beside=memory.total - memory.stack,
        reserve=job.reserve,
        budget=job.budget,
        model="MODEL" if job.request.model.kind == "ir" else shlex.quote(job.request.model.text),
        options=(
            *(word for word in job.model_options if not word.startswith("--device ")),
            *(("--fuse",) if is_fused else ()),
        ),
        files=files,
        replaced=replaced,
        untraced=_untraced(job, compiled.graph),
        page=job.page,
        shows_curve=job.curve,
    )
    if job.json:
        print_json(record(report))
    else:
        render.print_lines(render.console(), lines(report))
    return 0


def _fuse(job: FitJob, compiled: Compiled, program: Program, fitted: FittedStep) -> FittedStep:
    """The fitted step with its ops fused, in no more than its stack."""
    from tmmu.fused_fit import fuse_fitted

    with quiet(), progress_bar() as progress:
        progress("fusing", len(fitted.graph.ops))
        return fuse_fitted(program, fitted, _fit_request(job, compiled), kernel_folder())


def _page_bytes(job: FitJob, fitting: Fitting, step: FittedStep) -> bytes:
    """The plan that is written as an HTML file, with the curve."""
    return page_html([report_contents(job.name, step.plan, step.graph, curve=curve_figure(fitting))])


def _untraced(job: FitJob, graph: Graph) -> str:
    """Why no model is traced to a graph of a file, so that no command runs its plan; empty where one may be."""
    model = job.request.model
    if model.kind != "ir":
        return ""
    if any(target.startswith(f"{FUSED_NAMESPACE}.") for target in graph.ops.target):
        return f"ops of {model.text} are fused, and a fused step does not run in a fitted plan: fit the model"
    if is_rewritten(model.path, graph):
        return f"{model.text} was fitted before, and no model is traced to it: fit the graph that it was made of"
    return ""


def _plan_of_another_graph(job: FitJob, base: Graph) -> Path | None:
    """A plan of the same name, if it is one, whose graph the base takes the place of; ``None`` where there is none."""
    name = f"{job.name}{PLAN_SUFFIX}"
    try:
        plan = load_plan(job.folder / name)
    except TmmuError:
        return None
    return None if plan.ir_hash == base.ir_hash else job.shown_folder / name


def _fit(job: FitJob, compiled: Compiled, program: Program | None) -> DeviceFitting:
    """The step within the limits; what is written has parts that this machine's device does as the whole.

    ``program``: the one that was traced, where it was.
    """
    request, whole_curve = _fit_request(job, compiled), job.curve or job.page is not None
    if not job.writes:
        return DeviceFitting(fitting=fit_graph(compiled.graph, compiled.plan, request, whole_curve=whole_curve))
    from tmmu.passes.lowering.read_calls import read_program

    graph = compiled.graph
    return fit_on_device(
        lambda: program or read_program(graph), compiled, request, graph.target, whole_curve=whole_curve
    )


def _fit_request(job: FitJob, compiled: Compiled) -> FitRequest:
    plan, limit = job.request.plan, job.step
    if job.budget is not None:
        limit = stack_room(compiled.plan, compiled.graph, job.budget, job.reserve)
    return FitRequest(
        limit=limit,
        at_most=job.at_most,
        levers=job.levers,
        near=job.near,
        arenas=plan.arenas,
        settings=PlanSettings(
            preset=compiled.plan.preset,
            token=plan.token,
            mode=compiled.plan.mode,
            budget=job.budget if job.budget is not None else job.step,
            search_nodes=plan.search_nodes,
        ),
    )


def _run_max(job: FitJob, axis: str) -> int:
    """Print the largest size; returns 0."""
    plan = job.request.plan
    request = SizeRequest(
        starts=sizes_of_request(job.request, axis),
        limit=_max_limit(job),
        is_whole=job.budget is not None,
        mode=plan.mode,
        arenas=plan.arenas,
        settings=PlanSettings(
            preset=plan.preset, token=plan.token, budget=job.budget or job.step, search_nodes=plan.search_nodes
        ),
        unit=size_unit(axis),
        levers=job.levers,
        near=job.near,
        at_most=job.at_most,
    )

    def trace(size: int) -> tuple[Graph, Plan]:
        compiled = compile_request(at_size(job.request, axis, size))
        _require_whole_step(compiled)
        return compiled.graph, compiled.plan

    model = job.request.model
    option = f"--{axis} " if model.kind == "hf" else f"--set {axis}="
    others = [word for word in job.model_options if not word.startswith(option)]
    from tmmu.passes.lowering.read_calls import read_program

    report = MaxReport(
        answer=max_on_device(trace, read_program, request),
        request=request,
        axis=axis,
        budget=job.budget,
        reserve=job.reserve,
        size_option=f"tmmu fit {shlex.quote(model.text)} {option}",
        other_options=" ".join((*others, *job.limit_options)),
    )
    if job.json:
        print_json(max_report.record(report))
    else:
        render.print_lines(render.console(), max_report.lines(report))
    return 0


def _max_limit(job: FitJob) -> int:
    """Bytes for the stack, or for all but the reserve; ``BUDGET_TOO_SMALL`` where the reserve takes it."""
    if job.budget is None:
        return job.step or 0
    if job.budget < job.reserve:
        raise BudgetTooSmall(
            f"the reserve of {readable_size(job.reserve)} is more than the budget of {readable_size(job.budget)}",
            fix="give a larger budget or a smaller --reserve",
            short=job.reserve - job.budget,
        )
    return job.budget - job.reserve


def curve_figure(fitting: Fitting) -> CurveFigure | None:
    """The curve as it is drawn; ``None`` where it was not searched."""
    curve, fitted, base_time = fitting.curve, fitting.fitted, max(1, fitting.base_time)
    if curve is None:
        return None
    return CurveFigure(
        points=tuple((point.time * PPM // base_time, point.peak) for point in curve.points),
        taken=(fitted.time * PPM // base_time, fitted.stack_bytes),
        base=fitting.base_stack,
        floor=fitting.floor.bytes,
    )


def _require_whole_step(compiled: Compiled) -> None:
    graph, plan = compiled.graph, compiled.plan
    if graph.calls is None:
        raise InvalidConfig("the graph does not say its calls", fix="plan the model again, or give the model")
    is_own = graph.notes.eager is not None and graph.notes.eager.own_step
    is_half = plan.mode == "backward" and not is_own and all(stage == "forward" for stage in graph.ops.stage)
    if is_half or len(plan.order) != len(graph.ops):
        raise InvalidConfig(
            "the plan is not of a whole step", fix="use --mode backward for a training step, else --mode inference"
        )
