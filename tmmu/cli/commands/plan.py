"""``tmmu plan``: from options to a written, judged plan and its summary."""

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tmmu.cache import CachedPlan
from tmmu.cache.key_parts import configuration_parts, exported_parts, graph_parts
from tmmu.cli.boundary import print_json
from tmmu.cli.load import load_graph
from tmmu.cli.options import (
    DEFAULT_SEED,
    Target,
    arena_specs,
    graph_output,
    parse_reserve,
    parse_settings,
    parse_target,
    parse_token,
    plan_path,
    refuse,
    require_count,
    require_nodes,
    require_writable,
    same_file,
)
from tmmu.cli.output import render
from tmmu.cli.output.printable import printable
from tmmu.cli.output.progress import progress_bar
from tmmu.cli.output.summary import summarize
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

    target: str
    device: str | None
    mode: str
    preset: str | None
    optimizer: str | None
    settings: Sequence[str] | None
    inputs: Sequence[str] | None
    batch: int | None
    seq: int | None
    dtype: str | None
    decode: bool
    cache_len: int | None
    seed: int | None
    token: str | None
    token_file: Path | None
    arena: Sequence[str] | None
    nodes: int | None
    output: str | None
    ir: str | None
    reserve: str | None
    as_json: bool
    no_cache: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
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

    target: Target
    capture: CaptureOptions
    request: PlanRequest
    folder: Path
    plan: Path
    ir: Path | None
    reserve: int
    json: bool
    cache: bool


def plan_job(given: PlanOptions) -> PlanJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    target = parse_target(given.target)
    refuse_what_does_not_apply(target, given)
    plan = plan_path(given.output, target)
    ir = graph_output(given.ir, plan)
    again = ir is not None and target.kind == "ir" and same_file(ir, target.path)
    if ir == plan:
        raise InvalidConfig(f"--output and --ir both name {plan}", fix="name two files")
    return PlanJob(
        target=target,
        capture=capture_options(given),
        request=plan_request(given),
        plan=require_writable(plan, "--output", never=target.path),
        ir=None if ir is None or again else require_writable(ir, "--ir", never=target.path),
        folder=Path.cwd(),
        reserve=parse_reserve(given.reserve),
        json=given.as_json,
        cache=not given.no_cache,
    )


def capture_options(given: PlanOptions) -> CaptureOptions:
    """What to capture; every option is checked."""
    return CaptureOptions(
        device=given.device or "cuda",
        mode=given.mode,
        optimizer=given.optimizer,
        settings=parse_settings(given.settings or ()),
        inputs=tuple(given.inputs or ()),
        batch=require_count(given.batch, "--batch") or 1,
        seq=require_count(given.seq, "--seq"),
        dtype=given.dtype,
        decode=given.decode,
        cache_len=require_count(given.cache_len, "--cache-len"),
    )


def plan_request(given: PlanOptions) -> PlanRequest:
    """How to plan; every option is checked."""
    token = parse_token(given.seed, given.token, given.token_file)
    return PlanRequest(
        mode=given.mode,
        preset=given.preset or ("inference" if given.mode == "inference" else "train_full"),
        token=token_from_seed(DEFAULT_SEED) if token is None else token,
        arenas=arena_specs(given.arena or ()),
        search_nodes=require_nodes(given.nodes) or 0,
    )


def refuse_what_does_not_apply(target: Target, given: PlanOptions) -> None:
    """Refuses options that mean nothing for this kind of target, or beside the others."""
    model = {"--set": tuple(given.settings or ()), "--input": tuple(given.inputs or ())}
    hugging_face = {
        "--batch": given.batch,
        "--seq": given.seq,
        "--dtype": given.dtype,
        "--decode": given.decode,
        "--cache-len": given.cache_len,
    }
    if target.kind not in ("file", "class"):
        refuse(model, "only for a model.py or model.py:Name")
    if target.kind != "hf":
        refuse(hugging_face, "only for an hf: target; a model.py takes --set")
    if target.kind == "ir":
        refuse({"--target": given.device, "--optimizer": given.optimizer}, "settled when the graph was captured")
    if given.mode != "backward":
        refuse({"--optimizer": given.optimizer}, "only with --mode backward")
    if not given.decode:
        refuse({"--cache-len": given.cache_len}, "only with --decode")


def run_plan(job: PlanJob) -> int:
    """Both files written and the summary printed; 0."""
    compiled = compile_target(job.target, job.capture, job.request, keep=job.cache)
    files = [(job.folder / job.plan, encode_plan(compiled.plan))]
    if job.ir is not None:
        files.append((job.folder / job.ir, encode_graph(compiled.graph)))
    write_together(files)
    _report(job, compiled)
    return 0


def compile_target(target: Target, capture: CaptureOptions, plan: PlanRequest, *, keep: bool) -> Compiled:
    """The plan of a target, judged; with ``keep`` one that is kept is taken, and a new one kept."""
    cache = plan_cache(reverify=True) if keep else None
    if target.kind == "ir":
        graph = load_graph(target.path)
        _require_gradient(graph, plan.mode)
        return compile_graph(graph, plan, cache=cache, key=graph_key(graph, plan))
    key = file_key(target, capture, plan) if cache else None
    known = load_cached_plan(cache, key, plan) if cache and key else None
    if known is not None:
        return known
    watch = Stopwatch()
    with quiet(), progress_bar() as progress:
        progress("importing torch", 0)
        request = watch.run("import", lambda: capture_request(target, capture))
        compiled = compile_model(request, plan, progress, cache=cache, key=key)
    return replace(compiled, seconds=watch.seconds | dict(compiled.seconds))


def file_key(target: Target, capture: CaptureOptions, request: PlanRequest) -> Key | None:
    """The key of a target whose files say all, so that neither torch nor the model is needed; else ``None``."""
    if target.kind == "hf":
        names = ("batch", "seq", "dtype", "decode", "cache_len")
        parts = configuration_parts(target.path, {name: getattr(capture, name) for name in names})
    elif target.kind == "pt2":
        parts = exported_parts(target.path)
    else:
        return None
    asked = request_key(request, device=capture.device, optimizer=capture.optimizer)
    return None if isinstance(parts, NoKey) else asked.replaced(*parts)


def graph_key(graph: Graph, request: PlanRequest) -> Key:
    """The key of a graph file, by all that it says."""
    parts = graph_parts(encode_graph(graph), graph.notes.name)
    return request_key(request, device=graph.target, optimizer=None).replaced(*parts)


def _require_gradient(graph: Graph, mode: str) -> None:
    """Refuses a training mode for a graph that has no backward op and no op that saves anything for one."""
    if mode != "inference" and "backward" not in graph.ops.stage and not any(graph.ops.saves):
        raise InvalidConfig(
            f"--mode {mode}: the graph was captured for inference: it does not say what the gradient needs",
            fix="plan the model again with --mode backward",
        )


def capture_request(target: Target, options: CaptureOptions) -> "CaptureRequest":
    """The request that these options make. Imports torch."""
    from tmmu.passes.capture.request import CaptureRequest

    return CaptureRequest(target=target.text, **{name: getattr(options, name) for name in CaptureOptions.__slots__})


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
        graph = job.ir or (job.target.path if job.target.kind == "ir" else None)
        files = {"plan": str(job.plan), "ir": None if graph is None else str(graph)}
        found = cache_record(compiled.cached)
        print_json(asdict(summary) | {"files": files, "cache": found, "seconds": dict(compiled.seconds)})
        return
    out = render.console()
    render.print_summary(out, summary)
    render.print_lines(out, [f"wrote {' and '.join(str(path) for path in (job.plan, job.ir) if path)}"])
    if out.is_terminal:
        out.print(render.seconds_line(compiled.seconds), style="dim")
        if compiled.cached:
            out.print(cache_line(compiled.cached), style="dim")


def cache_record(found: CachedPlan | None) -> dict[str, str] | None:
    """Where the plan came from, and why not from where it could have."""
    if found is None:
        return None
    return {"origin": found.origin, "miss": str(found.miss or ""), "unkept": found.unkept}


def cache_line(found: CachedPlan) -> str:
    """The same in one line for a person."""
    why = "; ".join(text for text in (str(found.miss or ""), found.unkept) if text)
    return printable(f"cache: {found.origin}" + (f" ({why})" if why else ""))
