"""The commands. Typer parses; each command returns what to run, and ``run`` runs it at one error boundary."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tmmu.cli import option_types as words
from tmmu.cli.boundary import guarded, print_json
from tmmu.cli.options import parse_reserve, parse_token, refuse

Run: TypeAlias = Callable[[], int]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Plan the memory of a PyTorch model before it runs, to the byte.",
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    as_json: words.Json = False,
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
def plan(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=words.TARGETS_HELP)],
    device: words.Kernels = None,
    mode: words.HowMuch = "inference",
    preset: words.Knobs = None,
    optimizer: words.Update = None,
    settings: words.Settings = None,
    inputs: words.Inputs = None,
    batch: words.Batch = None,
    seq: words.Tokens = None,
    dtype: words.WeightsIn = None,
    decode: words.Decode = False,
    cache_len: words.CacheLength = None,
    seed: words.Seed = None,
    token: words.Token = None,
    token_file: words.TokenFile = None,
    arena: words.Arena = None,
    nodes: words.Nodes = None,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="[NAME.plan.cbor]")] = None,
    ir: words.GraphOut = None,
    reserve: words.Reserve = None,
    no_cache: words.NoCache = False,
    as_json: words.Json = False,
) -> Run:
    """Trace TARGET without weights or GPU, and write a plan in which every byte is decided and judged."""
    given = dict(locals())
    from tmmu.cli.commands.plan import PlanOptions, plan_job, run_plan

    return lambda: run_plan(plan_job(PlanOptions(**given)))


@app.command(name="run")
def run_command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="model.py, model.py:Name, hf:PATH or NAME.pt2")],
    device: Annotated[words.Device, typer.Option(help="Where to run.")] = "cpu",
    mode: Annotated[words.Mode | None, typer.Option(help="How much of a step runs. [inference]")] = None,
    preset: words.Knobs = None,
    optimizer: words.Update = None,
    settings: words.Settings = None,
    inputs: words.Inputs = None,
    batch: words.Batch = None,
    seq: words.Tokens = None,
    dtype: words.WeightsIn = None,
    decode: words.Decode = False,
    cache_len: words.CacheLength = None,
    seed: words.Seed = None,
    token: words.Token = None,
    token_file: words.TokenFile = None,
    arena: words.Arena = None,
    nodes: words.Nodes = None,
    seed_weights: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Of random weights, inputs and operators.")
    ] = 0,
    weights: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A safetensors file, or a folder of them. [random]")
    ] = None,
    plan: Annotated[Path | None, typer.Option(metavar="PLAN", help="Run in this plan. [a new one]")] = None,
    ring: Annotated[bool, typer.Option("--ring", help="Stream the weights; with --budget.")] = False,
    budget: Annotated[str | None, typer.Option(metavar="SIZE", help="Of the device, for weights that stream.")] = None,
    prefetch: Annotated[
        bool, typer.Option("--prefetch/--no-prefetch", help="Copy weights ahead of their layer.")
    ] = True,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with a run without a plan, and with the model itself.")
    ] = False,
    sanitize: Annotated[bool, typer.Option("--sanitize", help="Watch every op; name the one that goes wrong.")] = False,
    bench: Annotated[
        bool, typer.Option("--bench", help="Time it, and count allocations, beside eager and torch.compile.")
    ] = False,
    no_cache: words.NoCache = False,
    as_json: words.Json = False,
) -> Run:
    """Plan TARGET and run it once inside the plan, with random inputs."""
    given = dict(locals())
    from tmmu.cli.commands.run import run_job, run_run

    return lambda: run_run(run_job(**given))


@app.command()
def verify(
    plan: words.PlanFile,
    ir: words.IrFile = None,
    seed: words.Seed = None,
    token: words.Token = None,
    token_file: words.TokenFile = None,
    as_json: words.Json = False,
) -> Run:
    """Execute PLAN abstractly on its graph, and check every byte, span, slot and address."""
    from tmmu.cli.commands.verify import VerifyJob, run_verify

    return lambda: run_verify(VerifyJob(plan=plan, ir=ir, token=parse_token(seed, token, token_file), json=as_json))


@app.command()
def show(
    plan: words.PlanFile,
    ir: words.IrFile = None,
    trace: Annotated[bool, typer.Option("--trace", help="The allocation trace, as JSON lines.")] = False,
    peak: Annotated[bool, typer.Option("--peak", help="All buffers that are live at the peak.")] = False,
    ops: Annotated[bool, typer.Option("--ops", help="The operators, and which the operator table lacks.")] = False,
    reserve: words.Reserve = None,
    as_json: words.Json = False,
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
        str | None, typer.Option(metavar="SIZE", help="Fit into this. [the least that is found]")
    ] = None,
    alignment: Annotated[str | None, typer.Option(metavar="SIZE", help="Of rows that name none. [1]")] = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="Of the exact search, at most.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT.csv", help="The rows with offsets.")
    ] = None,
    as_json: words.Json = False,
) -> Run:
    """Give every interval an offset so that the highest end is least; a given offset stays."""
    given = dict(locals())
    from tmmu.cli.commands.pack import pack_job, run_pack

    return lambda: run_pack(pack_job(**given))


@app.command()
def ring(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=words.TARGETS_HELP)],
    budget: Annotated[str, typer.Option(metavar="SIZE", help="Device bytes for weights, for example 18GiB.")],
    policy: Annotated[words.RingPolicy, typer.Option(help="Who stays, and where the others land.")] = "cyclic",
    depth: Annotated[
        int, typer.Option(metavar="N", min=0, max=1 << 16, help="Issue copies so many layers ahead, at least.")
    ] = 0,
    device_link: Annotated[str | None, typer.Option(metavar="RATE", help="Host to device. [24GB/s]")] = None,
    copy_cost: Annotated[
        int, typer.Option(metavar="NS", min=0, max=10**9, help="Of one copy beside its bytes, in nanoseconds.")
    ] = 10_000,
    device_flops: Annotated[str | None, typer.Option(metavar="RATE", help="Arithmetic. [150TFLOP/s]")] = None,
    device_memory: Annotated[str | None, typer.Option(metavar="RATE", help="Of its memory. [1.5TB/s]")] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Print one steady pass, copy by copy.")] = False,
    device: words.Kernels = None,
    mode: words.HowMuch = "inference",
    preset: words.Knobs = None,
    optimizer: words.Update = None,
    settings: words.Settings = None,
    inputs: words.Inputs = None,
    batch: words.Batch = None,
    seq: words.Tokens = None,
    dtype: words.WeightsIn = None,
    decode: words.Decode = False,
    cache_len: words.CacheLength = None,
    seed: words.Seed = None,
    token: words.Token = None,
    token_file: words.TokenFile = None,
    arena: words.Arena = None,
    nodes: words.Nodes = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan, its ring in it.")
    ] = None,
    ir: words.GraphOut = None,
    no_cache: words.NoCache = False,
    as_json: words.Json = False,
) -> Run:
    """Stream TARGET's weights through a budget: the schedule, the time of a pass, and what limits it."""
    given = dict(locals())
    from tmmu.cli.commands.ring import ring_job, run_ring

    return lambda: run_ring(ring_job(**given))


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help=words.SIDE_HELP)],
    after: Annotated[str, typer.Argument(metavar="B", help="The same: what A is compared with.")],
    fail_over: Annotated[str | None, typer.Option(metavar="LIMIT", help="Exit 3 over 1%, or 64MiB.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="For a comment on a pull request.")] = False,
    device: Annotated[words.Device | None, typer.Option("--target", help="Whose kernels to plan for.")] = None,
    mode: Annotated[words.Mode | None, typer.Option(help="How much of a step runs.")] = None,
    preset: Annotated[words.Preset | None, typer.Option(help="As for tmmu plan.")] = None,
    optimizer: words.Update = None,
    settings: words.Settings = None,
    inputs: words.Inputs = None,
    batch: words.Batch = None,
    seq: words.Tokens = None,
    dtype: words.WeightsIn = None,
    decode: words.Decode = False,
    cache_len: words.CacheLength = None,
    arena: words.Arena = None,
    nodes: words.Nodes = None,
    no_cache: words.NoCache = False,
    as_json: words.Json = False,
) -> Run:
    """Say what B needs more than A, and which line of the model makes the difference."""
    options = {
        "--target": device,
        "--mode": mode,
        "--preset": preset,
        "--optimizer": optimizer,
        "--set": settings,
        "--input": inputs,
        "--batch": batch,
        "--seq": seq,
        "--dtype": dtype,
        "--decode": decode,
        "--cache-len": cache_len,
        "--arena": arena,
        "--nodes": nodes,
        "--no-cache": no_cache,
    }
    from tmmu.cli.commands.diff import diff_job, run_diff

    job = partial(diff_job, before=before, after=after, options=options, fail_over=fail_over)
    return lambda: run_diff(job(as_json=as_json, as_markdown=as_markdown))


golden = typer.Typer(add_completion=False, help="Hold the planner against what it has said since it was recorded.")
app.add_typer(golden, name="golden")


@golden.command(name="check")
def golden_check(
    cases: words.Cases = None, folder: words.Folder = words.GOLDEN, jobs: words.Jobs = 2, as_json: words.Json = False
) -> Run:
    """Plan every case again and compare each digest; say what moved. Writes nothing."""
    from tmmu.cli.commands.golden import golden_job, run_check
    from tmmu.golden.check import recorded_cases

    job = partial(golden_job, folder=folder, names=cases or (), jobs=jobs, as_json=as_json)
    return lambda: run_check(job(read=recorded_cases))


@golden.command(name="update")
def golden_update(
    cases: words.Cases = None, folder: words.Folder = words.GOLDEN, jobs: words.Jobs = 2, as_json: words.Json = False
) -> Run:
    """Record what the planner says now, and say what moved and which version that takes."""
    from tmmu.cli.commands.golden import golden_job, run_update

    return lambda: run_update(golden_job(folder=folder, names=cases or (), jobs=jobs, as_json=as_json))


@golden.command(name="show")
def golden_show(
    case: Annotated[str | None, typer.Argument(metavar="[CASE]", help="[a list of all]", show_default=False)] = None,
    folder: words.Folder = words.GOLDEN,
    mode: Annotated[words.Mode | None, typer.Option(help="Of the plan. [the case's own choice]")] = None,
    preset: Annotated[words.Preset | None, typer.Option(help="Of the plan. [the case's own choice]")] = None,
    as_json: words.Json = False,
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
        str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N. [cuda where there is one, else cpu]")
    ] = None,
    size: Annotated[str, typer.Option(metavar="SIZE", help="Of one copy.")] = "256MiB",
    tries: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="The best of them counts.")] = 5,
    as_json: words.Json = False,
) -> Run:
    """Measure copies between host and DEVICE: pinned and pageable, both ways, what one costs, how wide the link is."""
    from tmmu.cli.commands.bandwidth import bandwidth_job, run_bandwidth

    return lambda: run_bandwidth(bandwidth_job(device=device, size=size, tries=tries, as_json=as_json))


cache = typer.Typer(add_completion=False, help="Plans that are kept: list them, ask why one is not found, make room.")
app.add_typer(cache, name="cache")


@cache.command(name="ls")
def cache_ls(as_json: words.Json = False) -> Run:
    """List what is kept, most recently used first."""
    from tmmu.cli.commands.cache import run_ls

    return lambda: run_ls(as_json=as_json)


@cache.command(
    name="why",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="TARGET [OPTIONS OF tmmu plan]",
)
def cache_why(context: typer.Context) -> Run:
    """Say whether the plan of TARGET is kept, else in which parts its key differs from the nearest. Options of plan."""
    from tmmu.cli.commands.cache import run_why, why_job
    from tmmu.cli.commands.plan import PlanOptions

    plans = vars(typer.main.get_command(app))["commands"]["plan"]
    asked = plans.make_context("plan", list(context.args))
    return lambda: run_why(why_job(PlanOptions(**asked.params)))


@cache.command(name="verify")
def cache_verify(as_json: words.Json = False) -> Run:
    """Read every entry and judge its plan."""
    from tmmu.cli.commands.cache import run_verify_cache

    return lambda: run_verify_cache(as_json=as_json)


@cache.command(name="prune")
def cache_prune(
    everything: Annotated[bool, typer.Option("--all", help="Remove every entry.")] = False,
    limit: Annotated[str | None, typer.Option(metavar="SIZE", help="Room for the rest. [256MiB]")] = None,
    as_json: words.Json = False,
) -> Run:
    """Remove what cannot be served, and what was not used for longest until the rest fits."""
    from tmmu.cli.commands.cache import run_prune

    return lambda: run_prune(everything=everything, limit=limit, as_json=as_json)


def run(arguments: Sequence[str]) -> int:
    """The exit code of the program for these arguments."""

    def step() -> int:
        job = app(list(arguments), prog_name="tmmu", standalone_mode=False)
        return job() if callable(job) else int(job or 0)

    return guarded(step, as_json="--json" in arguments)
