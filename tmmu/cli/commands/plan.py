"""``tmmu plan``: from options to a written, judged plan and its summary."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tmmu.cache import CachedPlan
from tmmu.cache.key_parts import configuration_parts, exported_parts, graph_parts
from tmmu.cli.error_boundary import print_json
from tmmu.cli.load import load_graph
from tmmu.cli.options import CaptureOptions, PlanningOptions, TokenOptions, applications
from tmmu.cli.output import render
from tmmu.cli.output.progress import progress_bar
from tmmu.cli.output.summary import summarize
from tmmu.cli.parsing import (
    DEFAULT_MODE,
    DEFAULT_SEED,
    ModelArgument,
    arena_specs,
    graph_output,
    parse_model,
    parse_reserve,
    parse_settings,
    parse_token,
    plan_path,
    refuse,
    require_count,
    require_nodes,
    require_writable,
    same_file,
)
from tmmu.cli.printable import printable
from tmmu.codec.files import write_together
from tmmu.driver import (
    Compiled,
    PlanRequest,
    Stopwatch,
    compile_graph,
    compile_model,
    load_cached_plan,
    plan_cache,
    request_key,
)
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.key import Key, NoKey
from tmmu.ir.plan import encode_plan
from tmmu.planner.token import token_from_seed

if TYPE_CHECKING:
    from tmmu.passes.capture.request import CaptureRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of ``tmmu plan`` as they were given."""

    model: str
    capture: CaptureOptions
    planning: PlanningOptions
    token: TokenOptions
    output: str | None = None
    ir: str | None = None
    reserve: str | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """What to capture: the fields of a ``CaptureRequest``, without the import of torch."""

    device: str
    mode: str
    optimizer: str | None
    settings: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...]
    batch: int
    seq: int | None
    dtype: str | None
    decode: bool
    cache_len: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJob:
    """One run of ``tmmu plan``, every option checked. ``ir`` is ``None`` where no graph is to be written.

    Relative outputs lie in ``folder``, wherever the model goes while it is traced.
    """

    model: ModelArgument
    capture: CaptureSettings
    request: PlanRequest
    folder: Path
    plan: Path
    ir: Path | None
    reserve: int
    json: bool
    cache: bool


def plan_job(options: PlanOptions) -> PlanJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    model = parse_model(options.model)
    refuse_what_does_not_apply(model, options.capture)
    plan = plan_path(options.output, model)
    ir = graph_output(options.ir, plan)
    is_input = ir is not None and model.kind == "ir" and same_file(ir, model.path)
    if ir == plan:
        raise InvalidConfig(f"--output and --ir both name {plan}", fix="name two files")
    return PlanJob(
        model=model,
        capture=capture_settings(options.capture),
        request=plan_request(options.capture, options.planning, options.token),
        plan=require_writable(plan, "--output", never=model.path),
        ir=None if ir is None or is_input else require_writable(ir, "--ir", never=model.path),
        folder=Path.cwd(),
        reserve=parse_reserve(options.reserve),
        json=options.as_json,
        cache=not options.planning.no_cache,
    )


def capture_settings(options: CaptureOptions, *, device: str = "cuda") -> CaptureSettings:
    """What to capture, for ``device`` where the options name none; every option is checked."""
    return CaptureSettings(
        device=options.device or device,
        mode=options.mode or DEFAULT_MODE,
        optimizer=options.optimizer,
        settings=parse_settings(options.settings or ()),
        inputs=tuple(options.inputs or ()),
        batch=require_count(options.batch, "--batch") or 1,
        seq=require_count(options.seq, "--seq"),
        dtype=options.dtype,
        decode=options.decode,
        cache_len=require_count(options.cache_len, "--cache-len"),
    )


def plan_request(capture: CaptureOptions, planning: PlanningOptions, token: TokenOptions) -> PlanRequest:
    """How to plan; every option is checked."""
    mode = capture.mode or DEFAULT_MODE
    replay_token = parse_token(token.seed, token.token, token.token_file)
    return PlanRequest(
        mode=mode,
        preset=planning.preset or ("inference" if mode == "inference" else "train_full"),
        token=token_from_seed(DEFAULT_SEED) if replay_token is None else replay_token,
        arenas=arena_specs(planning.arena or ()),
        search_nodes=require_nodes(planning.nodes) or 0,
    )


def refuse_what_does_not_apply(model: ModelArgument, options: CaptureOptions) -> None:
    """Refuses options that mean nothing for this kind of model, or beside the others."""
    markers = applications(CaptureOptions)
    refused: dict[str, dict[str, object]] = {}
    for option, value in options.given_options():
        if model.kind not in markers[option].kinds:
            refused.setdefault(markers[option].otherwise, {})[option] = value
    for reason, values in refused.items():
        refuse(values, reason)
    if options.mode != "backward":
        refuse({"--optimizer": options.optimizer}, "only with --mode backward")
    if not options.decode:
        refuse({"--cache-len": options.cache_len}, "only with --decode")


def run_plan(job: PlanJob) -> int:
    """Both files written and the summary printed; 0."""
    compiled = compile_argument(job.model, job.capture, job.request, keep=job.cache)
    files = [(job.folder / job.plan, encode_plan(compiled.plan))]
    if job.ir is not None:
        files.append((job.folder / job.ir, encode_graph(compiled.graph)))
    write_together(files)
    _report(job, compiled)
    return 0


def compile_argument(model: ModelArgument, capture: CaptureSettings, plan: PlanRequest, *, keep: bool) -> Compiled:
    """The plan of a model, judged; with ``keep`` one that is kept is taken, and a new one kept."""
    cache = plan_cache(reverify=True) if keep else None
    if model.kind == "ir":
        graph = load_graph(model.path)
        _require_gradient(graph, plan.mode)
        return compile_graph(graph, plan, cache=cache, key=graph_key(graph, plan))
    key = file_key(model, capture, plan) if cache else None
    compiled = load_cached_plan(cache, key, plan) if cache and key else None
    if compiled is not None:
        return compiled
    watch = Stopwatch()
    with quiet(), progress_bar() as progress:
        progress("importing torch", 0)
        request = watch.run("import", lambda: capture_request(model, capture))
        compiled = compile_model(request, plan, progress, cache=cache, key=key)
    return replace(compiled, seconds=watch.seconds | dict(compiled.seconds))


def file_key(model: ModelArgument, capture: CaptureSettings, request: PlanRequest) -> Key | None:
    """The key of an ``hf:`` or ``.pt2`` model by its files, without torch; ``None`` for others, which are traced."""
    if model.kind == "hf":
        names = ("batch", "seq", "dtype", "decode", "cache_len")
        parts = configuration_parts(model.path, {name: getattr(capture, name) for name in names})
    elif model.kind == "pt2":
        parts = exported_parts(model.path)
    else:
        return None
    key = request_key(request, device=capture.device, optimizer=capture.optimizer)
    return None if isinstance(parts, NoKey) else key.with_parts(*parts)


def graph_key(graph: Graph, request: PlanRequest) -> Key:
    """The key of a graph file by all its bytes."""
    parts = graph_parts(encode_graph(graph), graph.notes.name)
    return request_key(request, device=graph.target, optimizer=None).with_parts(*parts)


def _require_gradient(graph: Graph, mode: str) -> None:
    """Refuses a training mode for a graph that has no backward op and no op that saves anything for one."""
    if mode != "inference" and "backward" not in graph.ops.stage and not any(graph.ops.saves):
        raise InvalidConfig(
            f"--mode {mode}: the graph was captured for inference: it does not say what the gradient needs",
            fix="plan the model again with --mode backward",
        )


def capture_request(model: ModelArgument, settings: CaptureSettings) -> "CaptureRequest":
    """The request that these settings make. Imports torch."""
    from tmmu.passes.capture.request import CaptureRequest

    return CaptureRequest(model=model.text, **{name: getattr(settings, name) for name in CaptureSettings.__slots__})


@contextmanager
def quiet() -> Iterator[None]:
    """What a model or a library prints or warns while it is traced stays off stdout, and warnings are dropped."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _report(job: PlanJob, compiled: Compiled) -> None:
    summary = summarize(compiled.plan, compiled.graph, reserve=job.reserve)
    if job.json:
        graph = job.ir or (job.model.path if job.model.kind == "ir" else None)
        files = {"plan": str(job.plan), "ir": None if graph is None else str(graph)}
        cached = cache_record(compiled.cached)
        print_json(asdict(summary) | {"files": files, "cache": cached, "seconds": dict(compiled.seconds)})
        return
    out = render.console()
    render.print_summary(out, summary)
    render.print_lines(out, [f"wrote {' and '.join(str(path) for path in (job.plan, job.ir) if path)}"])
    if out.is_terminal:
        out.print(render.seconds_line(compiled.seconds), style="dim")
        if compiled.cached:
            out.print(cache_line(compiled.cached), style="dim")


def cache_record(cached: CachedPlan | None) -> dict[str, str] | None:
    """The JSON value of ``cache``: the level that had the plan, why it was not found, why it was not stored."""
    if cached is None:
        return None
    return {"origin": cached.origin, "miss": str(cached.miss or ""), "unkept": cached.store_error}


def cache_line(cached: CachedPlan) -> str:
    """The same as one line of text."""
    reasons = "; ".join(text for text in (str(cached.miss or ""), cached.store_error) if text)
    return printable(f"cache: {cached.origin}" + (f" ({reasons})" if reasons else ""))
