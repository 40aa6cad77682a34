"""``tmmu run``: run a model once inside its plan, and report its memory."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, cast

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.option_groups import AppliesTo, OptionGroup, command_words, expand_groups
from tmmu.cli.options import (
    FOR_SHARDED,
    PLAN_MODES,
    PYTHON,
    CaptureOptions,
    FusionOptions,
    Mode,
    PlanningOptions,
    Preset,
    RankOptions,
    TokenOptions,
)
from tmmu.cli.output import render
from tmmu.cli.output.progress import progress_bar
from tmmu.cli.output.run_report import lines, ranks_lines, record
from tmmu.cli.parsing import parse_model, parse_option
from tmmu.cli.planning import ModelRequest, capture_request, model_request, names_step, quiet
from tmmu.cli.rank_processes import PROCESSES_MAX, end_with_starter, run_ranks
from tmmu.codec.load import load_plan
from tmmu.driver import plan_cache
from tmmu.errors import InvalidConfig
from tmmu.ir.plan import Plan
from tmmu.model_run import RunRequest, run_model
from tmmu.passes.capture.ranks.running_rank import RunningRank, running_rank
from tmmu.planner.arenas import parse_size
from tmmu.planner.ring.prepare import RingRequest

RunModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Run this model: model.py, model.py:Name, package.module:Name, hf:PATH or NAME.pt2."
    ),
]

app = typer.Typer(add_completion=False)
SEEDS: Final = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommandOptions(OptionGroup):
    """Options of ``tmmu run`` alone."""

    seed_weights: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=SEEDS - 1,
            help="Draw weights, inputs and random operators by this seed, and rank R by the R-th after it.",
        ),
    ] = 0
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Read the weights from a safetensors file, or all in a folder. Default: random weights.",
        ),
    ] = None
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="Run in this NAME.plan.cbor. Default: a new plan.")
    ] = None
    ring: Annotated[
        bool, typer.Option("--ring", help="Stream the weights through --budget. Default: they stay on the device.")
    ] = False
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Stream the weights of --ring through SIZE. Default: none.")
    ] = None
    prefetch: Annotated[
        bool, typer.Option("--prefetch/--no-prefetch", help="Copy the weights of a ring ahead of their layer.")
    ] = True
    check: Annotated[
        bool, typer.Option("--check", help="Compare with a run without a plan, and with the model itself. Default: no.")
    ] = False
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Watch every op, and name the one that goes wrong. Default: no.")
    ] = False
    bench: Annotated[
        bool,
        typer.Option("--bench", help="Time a step and count allocations, beside eager and torch.compile. Default: no."),
    ] = False
    as_json: options.Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRankOptions(OptionGroup):
    """How many ranks run, a process each."""

    world: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Run N ranks of a Python model that shards itself, a process of this machine each, which talk by "
            "gloo. Under torchrun: be the rank that it says. Default: one process.",
        ),
        AppliesTo(PYTHON, "only for a model.py, model.py:Name or package.module:Name; an hf: model takes --tp, --fsdp"),
    ] = None
    tp: Annotated[
        int | None,
        typer.Option(metavar="N", help="Run an hf: model cut into columns and rows over N ranks (tensor parallel)."),
        FOR_SHARDED,
    ] = None
    fsdp: Annotated[
        int | None,
        typer.Option(metavar="N", help="Run an hf: model whose weights are sharded over N ranks (FSDP2)."),
        FOR_SHARDED,
    ] = None


@app.command()
@expand_groups
def run(  # noqa: PLR0913 - the groups of options of one command
    *,
    model: RunModel,
    capture: CaptureOptions,
    ranks: RunRankOptions,
    planning: PlanningOptions,
    fusion: FusionOptions,
    token: TokenOptions,
    settings: RunCommandOptions,
) -> options.Run:
    """Plan MODEL and run it once inside the plan, with random inputs."""
    return lambda: run_run(run_job(model, capture, planning, token, settings, ranks=ranks, fusion=fusion))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """One run of ``tmmu run``, every option checked."""

    request: ModelRequest
    run: RunRequest
    json: bool
    words: tuple[str, ...] = ()
    """The command line of each rank, where this process starts them."""


def run_job(  # noqa: PLR0913 - the groups of options of one command
    text: str,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    settings: RunCommandOptions,
    *,
    ranks: RunRankOptions | None = None,
    fusion: FusionOptions | None = None,
) -> RunJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    ranks = ranks or RunRankOptions()
    fusion = fusion or FusionOptions()
    words = command_words(capture, ranks, planning, fusion, token, settings)
    recorded = None if settings.plan is None else load_plan(settings.plan)
    model = parse_model(text)
    if model.kind == "ir":
        raise InvalidConfig("a graph does not say what its operators are called with", fix="run the model itself")
    if recorded is not None:
        is_step = capture.mode == "step" or (capture.mode is None and names_step(model, capture))
        capture, planning = _options_of_plan(recorded, str(settings.plan), capture, planning, is_step=is_step)
    running = running_rank(os.environ) if any(ranks.given_options()) else None
    rank_options = RankOptions(
        world=ranks.world, rank=None if running is None else str(running.rank), tp=ranks.tp, fsdp=ranks.fsdp
    )
    request = model_request(model, capture, planning, token, device="cpu", ranks=rank_options, fusion=fusion)
    _require_runnable_ranks(request, settings, running)
    if request.capture.mode == "step":
        _refuse_for_step(settings)
    ring = _ring_of(recorded, ring=settings.ring, budget=settings.budget)
    streams = ring is not None or (recorded is not None and recorded.ring is not None)
    if recorded is not None and recorded.fit is not None and bool(recorded.fit.fused) != fusion.fuse:
        raise _other_fusion(str(settings.plan), is_fused=not fusion.fuse)
    if fusion.fuse and streams:
        raise InvalidConfig("--fuse: kernels read weights that stay", fix="leave it out, or run it without a ring")
    if settings.sanitize and streams:
        raise InvalidConfig("--sanitize watches weights that stay", fix="run it without a ring: the ops are the same")
    if not settings.prefetch and not streams:
        raise InvalidConfig("--no-prefetch goes with --ring", fix="give --ring --budget SIZE, or drop it")
    run_request = RunRequest(
        seed=(settings.seed_weights + (0 if running is None else running.rank)) % SEEDS,
        weights=None if settings.weights is None else settings.weights.absolute(),
        check=settings.check,
        sanitize=settings.sanitize,
        bench=settings.bench,
        plan=recorded,
        ring=ring,
        prefetch=settings.prefetch,
        running=running,
    )
    starts_ranks = request.capture.world is not None and running is None
    return RunJob(
        request=request,
        run=run_request,
        json=settings.as_json,
        words=(*words, "--", text) if starts_ranks else (),
    )


def _require_runnable_ranks(request: ModelRequest, settings: RunCommandOptions, running: RunningRank | None) -> None:
    """``INVALID_CONFIG`` for what ranks do not run with, and for a process that is one of another number of them."""
    world = request.capture.world
    if world is None:
        return
    if running is not None and running.world != world:
        raise InvalidConfig(
            f"this process is rank {running.rank} of {running.world}, and the options say {world} ranks",
            fix=f"start {world} processes, or leave out torchrun: tmmu run starts them itself",
        )
    if running is None and world > PROCESSES_MAX:
        raise InvalidConfig(
            f"{world} ranks are {world} processes of this machine, and {PROCESSES_MAX} are run at most",
            fix="plan one with tmmu plan, or run fewer",
        )
    if request.capture.device != "cpu":
        raise InvalidConfig("ranks run on the CPU, where gloo is", fix="give --device cpu")
    for option, value in (("--ring", settings.ring), ("--bench", settings.bench), ("--weights", settings.weights)):
        if value:
            raise InvalidConfig(f"{option} is for a model that is whole, in one process", fix="leave it out")


def _refuse_for_step(settings: RunCommandOptions) -> None:
    """``InvalidConfig`` for what is for models alone: a step makes its weights itself, and changes them."""
    for option, value in (("--weights", settings.weights), ("--ring", settings.ring)):
        if value:
            raise InvalidConfig(
                f"{option} is for a model: a step makes its own weights and changes them",
                fix="leave it out, or run the model",
            )


def _options_of_plan(
    plan: Plan, name: str, capture: CaptureOptions, planning: PlanningOptions, *, is_step: bool
) -> tuple[CaptureOptions, PlanningOptions]:
    """The options with the plan's mode and preset; ``InvalidConfig`` for another value of what the plan settles.

    The plan of a step of the user's has the mode of a training step.
    """
    mode = "step" if is_step and plan.mode == PLAN_MODES["step"] else plan.mode
    settled = {"--mode": mode, "--preset": plan.preset, "--arena": None, "--nodes": None}
    for option, value in (*capture.given_options(), *planning.given_options()):
        if option in settled and value != settled[option]:
            raise InvalidConfig(
                f"{option} does not go with --plan", fix=f"drop it: {name} says what it was planned for"
            )
    return replace(capture, mode=cast("Mode", mode)), replace(planning, preset=cast("Preset", plan.preset))


def _other_fusion(plan: str, *, is_fused: bool) -> InvalidConfig:
    """What is wrong with ``--fuse``, or without it, and what to do."""
    if is_fused:
        return InvalidConfig(
            f"--plan: ops of the step in {plan} are fused", fix="add --fuse, by which results are near"
        )
    return InvalidConfig(f"--fuse: no op of the step in {plan} is fused", fix="leave it out, or fit it with --fuse")


def _ring_of(plan: Plan | None, *, ring: bool, budget: str | None) -> RingRequest | None:
    """The ring that ``--ring --budget SIZE`` asks for."""
    if not ring and budget is None:
        return None
    if not ring or budget is None:
        raise InvalidConfig("--ring and --budget go together", fix="give --ring --budget SIZE")
    if plan is not None:
        raise InvalidConfig("--ring does not go with --plan", fix="plan with tmmu ring, whose plan has its ring in it")
    return RingRequest(capacity=parse_option("--budget", lambda: parse_size(budget)))


def run_run(job: RunJob) -> int:
    """Run the model, or all of its ranks, and print the report; returns 0."""
    if job.words:
        return _run_ranks(job)
    end_with_starter(os.environ)
    with quiet(), progress_bar() as progress:
        progress("importing torch", 0)
        capture = capture_request(job.request)
        cache = plan_cache(reverify=True) if job.request.cache else None
        compiled, report = run_model(capture, job.request.plan, job.run, progress, cache=cache)
    if job.json:
        rank = None if job.run.running is None else job.run.running.rank
        print_json(record(compiled, report) | {"autocast": capture.autocast, "rank": rank})
        return 0
    out = render.console()
    render.print_lines(out, lines(compiled, report, job.run, model_file=job.request.model.path.name))
    render.print_lines(out, render.autocast_line(capture.autocast, capture.device))
    render.print_origin(out, compiled)
    return 0


def _run_ranks(job: RunJob) -> int:
    """Run each rank in a process of its own and print what all of them did."""
    world = job.request.capture.world or 1
    with progress_bar() as progress:
        progress(f"running {world} ranks", 0)
        records = run_ranks(job.words, world)
    if job.json:
        print_json({"world": world, "ranks": records})
        return 0
    render.print_lines(render.console(), ranks_lines(records, check=job.run.check))
    return 0
