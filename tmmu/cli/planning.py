"""From options to a judged plan: what the commands share that take a MODEL."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from tmmu.cache import PlanCache
from tmmu.cache.key_parts import configuration_parts, exported_parts, graph_parts
from tmmu.cli.option_groups import OptionGroup, applications
from tmmu.cli.options import PLAN_MODES, CaptureOptions, FusionOptions, PlanningOptions, RankOptions, TokenOptions
from tmmu.cli.output.progress import progress_bar
from tmmu.cli.parsing import (
    DEFAULT_MODE,
    DEFAULT_SEED,
    ModelArgument,
    arena_specs,
    parse_optimizer_text,
    parse_settings,
    parse_token,
    refuse,
    require_count,
    require_nodes,
    trains_on_batch,
)
from tmmu.cli.rank_parsing import parse_ranks
from tmmu.codec.load import load_graph
from tmmu.driver import (
    Compiled,
    PlanRequest,
    Stopwatch,
    compile_graph,
    compile_model,
    compile_traced,
    load_cached_plan,
    plan_cache,
    request_key,
)
from tmmu.errors import InternalError, InvalidConfig
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.key import Key, NoKey
from tmmu.ir.program import factor_text
from tmmu.passes.capture.ranks.schedules import DEFAULT_SCHEDULE
from tmmu.passes.capture.routing.factor import parse_factor
from tmmu.planner.token import token_from_seed
from tmmu.rank_plans import RankPlans, compile_ranks

if TYPE_CHECKING:
    from tmmu.ir.program import Program
    from tmmu.passes.capture.request import CaptureRequest


TRACED_WORKLOAD: Final = ("dtype", "loss", "autocast", "capacity_factor")
UNCUT: Final = ("tp", "fsdp", "ep")
"""Of which 1 is what is there without them."""
HUGGING_FACE_WORKLOAD: Final = (
    *("batch", "seq", "decode", "cache_len", "checkpoint"),
    *("world", "rank", "tp", "fsdp", "ep"),
)
"""Options of what is traced, which are in the key of files."""
PIPELINE_WORKLOAD: Final = ("pp", "schedule", "microbatches")
"""The same of a model that is cut into stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """The fields of a ``CaptureRequest`` except its model, without the import of torch."""

    device: str
    mode: str
    optimizer: str | None
    loss: str | None
    autocast: str | None
    settings: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...]
    symbolic_inputs: bool
    batch: int
    seq: int | None
    dtype: str | None
    decode: bool
    cache_len: int | None
    checkpoint: bool
    trust: bool
    world: int | None = None
    rank: int = 0
    tp: int = 1
    fsdp: int = 1
    ep: int = 1
    pp: int = 1
    schedule: str = DEFAULT_SCHEDULE
    microbatches: int | None = None
    capacity_factor: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model, what to capture of it and how to plan that, every option checked; ``cache``: use the plan cache.

    ``is_mode_open``, ``is_preset_open``: no option names it. Of a graph's file, the graph then says the mode.
    ``is_rank_open``: of many ranks the fullest is planned, which is not known before a trace.
    """

    model: ModelArgument
    capture: CaptureSettings
    plan: PlanRequest
    cache: bool
    is_mode_open: bool
    is_preset_open: bool
    is_rank_open: bool = False


def model_request(  # noqa: PLR0913 - the groups of options of a request
    model: ModelArgument,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    *,
    device: str = "cuda",
    ranks: RankOptions | None = None,
    fusion: FusionOptions | None = None,
) -> ModelRequest:
    """The checked request of these options; ``device`` is the default of ``--device``."""
    if capture.mode is None and names_step(model, capture):
        capture = replace(capture, mode="step")
    refuse_inapplicable(model, capture)
    ranks = ranks or RankOptions()
    refuse_for_kind(model, ranks)
    cut = parse_ranks(ranks, capture)
    mode = PLAN_MODES.get(capture.mode or DEFAULT_MODE, capture.mode or DEFAULT_MODE)
    replay_token = parse_token(token.seed, token.token, token.token_file)
    plan = PlanRequest(
        mode=mode,
        preset=planning.preset or ("inference" if mode == "inference" else "train_full"),
        token=token_from_seed(DEFAULT_SEED) if replay_token is None else replay_token,
        arenas=arena_specs(planning.arena or ()),
        search_nodes=require_nodes(planning.nodes) or 0,
        fuse=_require_fusible(model, capture, fusion or FusionOptions(), world=cut.world),
    )
    settings = replace(
        _capture_settings(capture, device),
        world=cut.world,
        rank=cut.rank or 0,
        tp=cut.tp,
        fsdp=cut.fsdp,
        ep=cut.ep,
        pp=cut.pp,
        schedule=cut.schedule,
        microbatches=cut.microbatches,
    )
    return ModelRequest(
        model=model,
        capture=settings,
        plan=plan,
        cache=not planning.no_cache,
        is_mode_open=capture.mode is None,
        is_preset_open=planning.preset is None,
        is_rank_open=cut.world is not None and cut.rank is None,
    )


def _require_fusible(
    model: ModelArgument, capture: CaptureOptions, options: FusionOptions, *, world: int | None
) -> bool:
    """Whether ops are fused; ``InvalidConfig`` where they cannot be."""
    refuse_for_kind(model, options)
    if not options.fuse:
        return False
    if world is not None:
        raise InvalidConfig("--fuse: ops of a rank are not fused", fix="leave it out, or plan the whole model")
    if capture.mode == "step":
        raise InvalidConfig("--fuse: ops of a step of your own are not fused", fix="leave it out, or plan a model")
    return True


def plan_of_graph(request: ModelRequest, graph: Graph) -> PlanRequest:
    """How a graph that was read is planned: whole where it is a training step and no option names a mode."""
    if not request.is_mode_open or all(stage == "forward" for stage in graph.ops.stage):
        return request.plan
    return replace(
        request.plan, mode="backward", preset="train_full" if request.is_preset_open else request.plan.preset
    )


def names_step(model: ModelArgument, options: CaptureOptions) -> bool:
    """Whether MODEL is a function of a file that takes a batch and trains on it, where ``--mode`` does not say."""
    settings = {text.partition("=")[0] for text in options.settings or ()}
    is_open = model.kind == "class" and not options.inputs
    return is_open and trains_on_batch(model.path, model.text.rpartition(":")[2], settings)


def _capture_settings(options: CaptureOptions, device: str) -> CaptureSettings:
    return CaptureSettings(
        device=options.device or device,
        mode=options.mode or DEFAULT_MODE,
        optimizer=parse_optimizer_text(options.optimizer),
        loss=options.loss,
        autocast=options.autocast,
        settings=parse_settings(options.settings or ()),
        inputs=tuple(options.inputs or ()),
        symbolic_inputs=options.symbolic_inputs,
        batch=require_count(options.batch, "--batch") or 1,
        seq=require_count(options.seq, "--seq"),
        dtype=options.dtype,
        decode=options.decode,
        cache_len=require_count(options.cache_len, "--cache-len"),
        checkpoint=options.checkpoint,
        trust=options.trust,
        capacity_factor=None
        if options.capacity_factor is None
        else parse_factor(options.capacity_factor, "--capacity-factor"),
    )


def refuse_inapplicable(model: ModelArgument, options: CaptureOptions) -> None:
    """``InvalidConfig`` for options that have no effect for this kind of model, or without another option."""
    refuse_for_kind(model, options)
    if options.mode == "step" and model.kind not in ("class", "module"):
        raise InvalidConfig("--mode step: only for a function of Python code", fix="name it: FILE.py:step")
    if options.mode != "backward":
        add = "use" if options.mode else "add"
        fix = f"{add} --mode backward, or leave it out"
        refuse({"--optimizer": options.optimizer}, "only with --mode backward", fix=fix)
    if options.mode in (None, DEFAULT_MODE, "step"):
        fix = "add --mode backward, or leave it out"
        reason = "only with --mode forward or backward"
        refuse({"--loss": options.loss, "--checkpoint": options.checkpoint or None}, reason, fix=fix)
    if not options.decode:
        refuse({"--cache-len": options.cache_len}, "only with --decode", fix="add --decode, or leave it out")


def refuse_for_kind(model: ModelArgument, options: OptionGroup) -> None:
    """``InvalidConfig`` for options of a group that have no effect for this kind of model."""
    markers = applications(type(options))
    refused: dict[str, dict[str, object]] = {}
    for option, value in options.given_options():
        if model.kind not in markers[option].kinds:
            refused.setdefault(markers[option].otherwise, {})[option] = value
    for reason, values in refused.items():
        refuse(values, reason)


def compile_request(request: ModelRequest) -> Compiled:
    """The judged plan of a model, from the cache if ``request.cache`` and it is there; a new plan is stored in it."""
    cache = plan_cache(reverify=True) if request.cache else None
    if request.model.kind == "ir":
        graph = load_graph(request.model.path)
        plan = plan_of_graph(request, graph)
        _require_gradient(graph, plan.mode)
        return compile_graph(graph, plan, cache=cache, key=graph_key(graph, plan))
    if request.is_rank_open:
        raise InternalError("of ranks that are open, all kinds are planned")
    key = file_key(request) if cache and not request.plan.fuse else None
    compiled = load_cached_plan(cache, key, request.plan) if cache and key else None
    if compiled is not None:
        return compiled
    watch = Stopwatch()
    with quiet(), progress_bar() as progress:
        progress("importing torch", 0)
        capture = watch.run("import", lambda: capture_request(request))
        compiled = compile_model(capture, request.plan, progress, cache=cache, key=key)
    return replace(compiled, seconds=watch.seconds | dict(compiled.seconds))


def trace_request(request: ModelRequest) -> "tuple[Compiled, Program]":
    """The judged plan of a model, and the program that it is for: not fused, and traced now, of no cache."""
    with quiet(), progress_bar() as progress:
        progress("importing torch", 0)
        return compile_traced(capture_request(request), request.plan, progress)


def compile_rank_request(request: ModelRequest, cache: PlanCache | None = None) -> RankPlans:
    """The judged plans of all kinds of ranks; new ones are kept in ``cache``, the user's where the request says so."""
    if cache is None and request.cache:
        cache = plan_cache(reverify=True)
    with quiet(), progress_bar() as progress:
        progress("importing torch", 0)
        capture = capture_request(request)
        return compile_ranks(
            request.capture.world or 1,
            lambda rank: compile_model(replace(capture, rank=rank), request.plan, progress, cache=cache),
        )


def file_key(request: ModelRequest) -> Key | None:
    """The key of an ``hf:`` or ``.pt2`` model by its files, without torch; ``None`` for others, which are traced."""
    capture = request.capture
    if request.model.kind == "hf":
        pipeline = PIPELINE_WORKLOAD if capture.pp > 1 else ()
        names = (*TRACED_WORKLOAD, *HUGGING_FACE_WORKLOAD, *pipeline)
        parts = configuration_parts(request.model.path, _workload(capture, *names))
    elif request.model.kind == "pt2":
        parts = exported_parts(request.model.path, _workload(capture, *TRACED_WORKLOAD))
    else:
        return None
    key = request_key(request.plan, device=capture.device, optimizer=capture.optimizer)
    return None if isinstance(parts, NoKey) else key.with_parts(*parts)


def _workload(capture: CaptureSettings, *names: str) -> dict[str, object]:
    """By name, what was named: weights that are not cut are in one piece, which says nothing."""
    values = {name: getattr(capture, name) for name in names}
    if capture.capacity_factor is not None:
        values["capacity_factor"] = factor_text(capture.capacity_factor)
    return {name: None if name in UNCUT and value == 1 else value for name, value in values.items()}


def graph_key(graph: Graph, plan: PlanRequest) -> Key:
    """The key of a graph file by all its bytes."""
    parts = graph_parts(encode_graph(graph), graph.notes.name)
    return request_key(plan, device=graph.target, optimizer=None).with_parts(*parts)


def _require_gradient(graph: Graph, mode: str) -> None:
    """``InvalidConfig`` for a training mode if no op is backward and none saves anything for one."""
    if mode != "inference" and "backward" not in graph.ops.stage and not any(graph.ops.saves):
        raise InvalidConfig(
            f"--mode {mode}: the graph was captured for inference: it does not say what the gradient needs",
            fix="plan the model again with --mode backward",
        )


def capture_request(request: ModelRequest) -> "CaptureRequest":
    """The request for the tracer. Imports torch."""
    from tmmu.passes.capture.request import CaptureRequest

    settings = {name: getattr(request.capture, name) for name in CaptureSettings.__slots__}
    return CaptureRequest(model=request.model.text, **settings)


@contextmanager
def quiet() -> Iterator[None]:
    """Send output of a traced model or library to stderr, and drop its warnings and log records."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
