"""The commands. Typer parses; each command returns what to run, and ``run`` runs it at one error boundary."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json, run_guarded
from tmmu.cli.options import CaptureOptions, PlanningOptions, TokenOptions, expand_groups, gather_groups
from tmmu.cli.parsing import parse_reserve, parse_token, refuse

Run: TypeAlias = Callable[[], int]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Plan the memory of a PyTorch model before it runs, to the byte.",
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit. Default: no.")] = False,
    as_json: options.Json = False,
) -> Run | None:
    """Plan the memory of a PyTorch model before it runs, to the byte."""
    if context.invoked_subcommand is not None:
        return None
    return partial(_print_version, as_json=as_json) if show_version else partial(_print_help, context)


def _print_help(context: typer.Context) -> int:
    typer.echo(context.get_help())
    return 0


def _print_version(*, as_json: bool) -> int:
    if as_json:
        print_json({"version": version("tmmu")})
    else:
        typer.echo(f"tmmu {version('tmmu')}")
    return 0


@app.command()
@expand_groups
def plan(
    *,
    model: options.Model,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    output: options.Output = None,
    ir: options.GraphOutput = None,
    reserve: options.Reserve = None,
    as_json: options.Json = False,
) -> Run:
    """Trace MODEL without weights or GPU, and write a plan in which every byte is decided and judged."""
    values = dict(locals())
    from tmmu.cli.commands.plan import PlanOptions, plan_job, run_plan

    return lambda: run_plan(plan_job(PlanOptions(**values)))


@app.command(name="run")
@expand_groups
def run_command(
    *,
    model: options.RunModel,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    seed_weights: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Seed of random weights, inputs and operators.")
    ] = 0,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Read the weights from a safetensors file, or a folder of them. Default: random."
        ),
    ] = None,
    plan: Annotated[Path | None, typer.Option(metavar="PLAN", help="Run in this plan. Default: a new one.")] = None,
    ring: Annotated[
        bool, typer.Option("--ring", help="Stream the weights; needs --budget. Default: they stay.")
    ] = False,
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of the device for weights that stream. Default: none.")
    ] = None,
    prefetch: Annotated[
        bool, typer.Option("--prefetch/--no-prefetch", help="Copy weights ahead of their layer.")
    ] = True,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with a run without a plan, and with the model itself. Default: no.")
    ] = False,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Watch every op, and name the one that goes wrong. Default: no.")
    ] = False,
    bench: Annotated[
        bool,
        typer.Option("--bench", help="Time it, and count allocations, beside eager and torch.compile. Default: no."),
    ] = False,
    as_json: options.Json = False,
) -> Run:
    """Plan MODEL and run it once inside the plan, with random inputs."""
    values = dict(locals())
    from tmmu.cli.commands.run import run_job, run_run

    return lambda: run_run(run_job(**values))


@app.command()
@expand_groups
def verify(
    *, plan: options.PlanFile, ir: options.GraphFile = None, token: TokenOptions, as_json: options.Json = False
) -> Run:
    """Execute PLAN abstractly on its graph, and check every byte, span, slot and address."""
    from tmmu.cli.commands.verify import VerifyJob, run_verify

    return lambda: run_verify(
        VerifyJob(plan=plan, ir=ir, token=parse_token(token.seed, token.token, token.token_file), json=as_json)
    )


@app.command()
def show(
    plan: options.PlanFile,
    ir: options.GraphFile = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the allocation trace, as JSON lines. Default: no.")
    ] = False,
    peak: Annotated[
        bool, typer.Option("--peak", help="List all buffers that are live at the peak. Default: the largest.")
    ] = False,
    ops: Annotated[
        bool, typer.Option("--ops", help="List the operators, and which the table lacks. Default: no.")
    ] = False,
    reserve: options.Reserve = None,
    as_json: options.Json = False,
) -> Run:
    """Print what PLAN holds."""
    from tmmu.cli.commands.show import ShowJob, run_show

    return lambda: run_show(
        ShowJob(plan=plan, ir=ir, trace=trace, peak=peak, ops=ops, reserve=parse_reserve(reserve), json=as_json)
    )


@app.command()
def pack(
    intervals: Annotated[
        Path, typer.Argument(metavar="INTERVALS.csv", help="id,lower,upper,size[,alignment][,offset]")
    ],
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Fit into so many bytes. Default: the least that is found.")
    ] = None,
    alignment: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Alignment of rows that name none. Default: 1.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Node budget of the exact search. Default: as many as take a minute."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT.csv", help="Write the rows with their offsets here. Default: nowhere."
        ),
    ] = None,
    as_json: options.Json = False,
) -> Run:
    """Give every interval an offset so that the highest end is least; a given offset stays."""
    values = dict(locals())
    from tmmu.cli.commands.pack import pack_job, run_pack

    return lambda: run_pack(pack_job(**values))


@app.command(name="ring")
@expand_groups
def ring_command(
    *,
    model: options.Model,
    budget: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of the device for weights, for example 18GiB.")],
    policy: Annotated[
        options.RingPolicy, typer.Option(help="Which weights stay, and where the others land.")
    ] = "cyclic",
    depth: Annotated[
        int, typer.Option(metavar="N", min=0, max=1 << 16, help="Issue copies at least so many layers ahead.")
    ] = 0,
    device_link: Annotated[
        str | None, typer.Option(metavar="RATE", help="Bandwidth from host to device. Default: 24GB/s.")
    ] = None,
    copy_cost: Annotated[
        int, typer.Option(metavar="NS", min=0, max=10**9, help="Nanoseconds that one copy costs beside its bytes.")
    ] = 10_000,
    device_flops: Annotated[
        str | None, typer.Option(metavar="RATE", help="Arithmetic of the device. Default: 150TFLOP/s.")
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(metavar="RATE", help="Bandwidth of the device's memory. Default: 1.5TB/s.")
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Print one steady pass, copy by copy. Default: no.")
    ] = False,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the plan, its ring in it. Default: nowhere."),
    ] = None,
    ir: options.GraphOutput = None,
    as_json: options.Json = False,
) -> Run:
    """Stream MODEL's weights through a budget: the schedule, the time of a pass, and what limits it."""
    profile = {name: value for name, value in locals().items() if name in RING_OPTIONS}
    from tmmu.cli.commands.plan import PlanOptions
    from tmmu.cli.commands.ring import ring_job, run_ring

    plan_options = PlanOptions(
        model=model, capture=capture, planning=planning, token=token, output=output, ir=ir, as_json=as_json
    )
    return lambda: run_ring(ring_job(options=plan_options, **profile))


RING_OPTIONS: Final = frozenset(
    ("budget", "policy", "depth", "device_link", "copy_cost", "device_flops", "device_memory", "simulate")
)


@app.command()
@expand_groups
def diff(
    *,
    before: Annotated[str, typer.Argument(metavar="A", help=options.SIDE_HELP)],
    after: Annotated[str, typer.Argument(metavar="B", help="The same: what A is compared with.")],
    fail_over: Annotated[
        str | None, typer.Option(metavar="LIMIT", help="Exit 3 where more is needed: 1%, or 64MiB. Default: never.")
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for a comment on a pull request. Default: text.")
    ] = False,
    capture: CaptureOptions,
    planning: PlanningOptions,
    as_json: options.Json = False,
) -> Run:
    """Say what B needs more than A, and which line of the model makes the difference."""
    from tmmu.cli.commands.diff import diff_job, run_diff

    values = dict((*capture.given_options(), *planning.given_options()))
    job = partial(diff_job, before=before, after=after, options=values, fail_over=fail_over)
    return lambda: run_diff(job(as_json=as_json, as_markdown=as_markdown))


golden = typer.Typer(add_completion=False, help="Hold the planner against what it has said since it was recorded.")
app.add_typer(golden, name="golden")


@golden.command(name="check")
def golden_check(
    cases: options.GoldenCases = None,
    folder: options.GoldenFolder = options.GOLDEN,
    jobs: options.Jobs = 2,
    as_json: options.Json = False,
) -> Run:
    """Plan every case again and compare each digest; say what moved. Writes nothing."""
    from tmmu.cli.commands.golden import golden_job, run_check
    from tmmu.golden.check import recorded_cases

    job = partial(golden_job, folder=folder, names=cases or (), jobs=jobs, as_json=as_json)
    return lambda: run_check(job(read=recorded_cases))


@golden.command(name="update")
def golden_update(
    cases: options.GoldenCases = None,
    folder: options.GoldenFolder = options.GOLDEN,
    jobs: options.Jobs = 2,
    as_json: options.Json = False,
) -> Run:
    """Record what the planner says now, and say what moved and which version that takes."""
    from tmmu.cli.commands.golden import golden_job, run_update

    return lambda: run_update(golden_job(folder=folder, names=cases or (), jobs=jobs, as_json=as_json))


@golden.command(name="show")
def golden_show(
    case: Annotated[
        str | None, typer.Argument(metavar="[CASE]", help="One case. Default: a list of all.", show_default=False)
    ] = None,
    folder: options.GoldenFolder = options.GOLDEN,
    mode: Annotated[
        options.Mode | None, typer.Option(help="Show the plan of this one. Default: the case's own choice.")
    ] = None,
    preset: Annotated[
        options.Preset | None, typer.Option(help="Show the plan of this one. Default: the case's own choice.")
    ] = None,
    as_json: options.Json = False,
) -> Run:
    """Print the cases and their reasons, or the graph and one plan of a case."""
    from tmmu.cli.commands.golden import golden_job, run_list, run_show

    if case is None:
        refuse({"--mode": mode, "--preset": preset}, "of which case")
        return lambda: run_list(golden_job(folder=folder, names=(), jobs=1, as_json=as_json))
    return lambda: run_show(golden_job(folder=folder, names=(case,), jobs=1, as_json=as_json), mode=mode, preset=preset)


@app.command()
def bandwidth(
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Measure this device: cpu, cuda or cuda:N. Default: cuda, else cpu."),
    ] = None,
    size: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of one copy.")] = "256MiB",
    tries: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Copies of each kind, of which the best counts.")
    ] = 5,
    as_json: options.Json = False,
) -> Run:
    """Measure copies between host and DEVICE: pinned and pageable, both ways, what one costs, how wide the link is."""
    from tmmu.cli.commands.bandwidth import bandwidth_job, run_bandwidth

    return lambda: run_bandwidth(bandwidth_job(device=device, size=size, tries=tries, as_json=as_json))


cache = typer.Typer(add_completion=False, help="Plans that are kept: list them, ask why one is not found, make room.")
app.add_typer(cache, name="cache")


@cache.command(name="ls")
def cache_ls(as_json: options.Json = False) -> Run:
    """List what is kept, most recently used first."""
    from tmmu.cli.commands.cache import run_ls

    return lambda: run_ls(as_json=as_json)


@cache.command(
    name="why",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="MODEL [OPTIONS OF tmmu plan]",
)
def cache_why(context: typer.Context) -> Run:
    """Say whether the plan of MODEL is kept, else in which parts its key differs from the nearest. Options of plan."""
    from tmmu.cli.commands.cache import run_why, why_job
    from tmmu.cli.commands.plan import PlanOptions

    parser = vars(typer.main.get_command(app))["commands"]["plan"]
    values = gather_groups(plan, parser.make_context("plan", list(context.args)).params)
    return lambda: run_why(why_job(PlanOptions(**values)))


@cache.command(name="verify")
def cache_verify(as_json: options.Json = False) -> Run:
    """Read every entry and judge its plan."""
    from tmmu.cli.commands.cache import run_verify_cache

    return lambda: run_verify_cache(as_json=as_json)


@cache.command(name="prune")
def cache_prune(
    everything: Annotated[
        bool, typer.Option("--all", help="Remove every entry. Default: what cannot be served.")
    ] = False,
    limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes that the rest may take. Default: 256MiB.")
    ] = None,
    as_json: options.Json = False,
) -> Run:
    """Remove what cannot be served, and what was not used for longest until the rest fits."""
    from tmmu.cli.commands.cache import run_prune

    return lambda: run_prune(everything=everything, limit=limit, as_json=as_json)


def run(arguments: Sequence[str]) -> int:
    """The exit code of the program for these arguments."""

    def step() -> int:
        job = app(list(arguments), prog_name="tmmu", standalone_mode=False)
        return job() if callable(job) else int(job or 0)

    return run_guarded(step, as_json="--json" in arguments)
