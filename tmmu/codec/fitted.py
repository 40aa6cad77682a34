"""Plans of rewritten graphs, and their three files: ``NAME.ir.cbor`` is the base, ``NAME.fit.*`` graph and plan.

The plan alone says how its graph is made of the base, so that the graph's file is there for those who have no base.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tmmu.codec.files import write_together
from tmmu.codec.load import IR_SUFFIX, PLAN_SUFFIX, ir_path, load_graph, load_plan, naming_file
from tmmu.errors import InternalError, PlanUnsound, TmmuError
from tmmu.ir.fit import FitRecord
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.plan import Plan, encode_plan
from tmmu.ir.rebuild import rebuild_graph
from tmmu.judge.check import judge
from tmmu.judge.rewrite.check import require_meaning, require_rows
from tmmu.judge.rules import require_legal

FIT_SUFFIX: Final = ".fit"


def fitted_paths(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Where the base's graph, the rewritten graph and its plan go."""
    plan = folder / f"{name}{FIT_SUFFIX}{PLAN_SUFFIX}"
    return folder / f"{name}{IR_SUFFIX}", ir_path(None, plan), plan


def base_path(plan: Path) -> Path:
    """Where the base of a plan's graph lies, if it lies beside the plan."""
    return plan.with_name(plan.name.removesuffix(PLAN_SUFFIX).removesuffix(FIT_SUFFIX) + IR_SUFFIX)


def is_rewritten(path: Path, graph: Graph) -> bool:
    """Whether the graph of a file is what a fit made of another one, so that no model is traced to it.

    The plan beside it says so; without a plan of it, its name does.
    """
    stem = path.name.removesuffix(IR_SUFFIX)
    try:
        plan = load_plan(path.with_name(stem + PLAN_SUFFIX))
    except TmmuError:
        plan = None
    if plan is None or plan.ir_hash != graph.ir_hash:
        return stem.endswith(FIT_SUFFIX)
    return plan.fit is not None and plan.fit.rewrite.base_hash != graph.ir_hash


def rebuild_fitted(base: Graph, plan: Plan) -> Graph:
    """The plan's graph, made of a legal base and the plan's key ``fit``; neither judge has seen it.

    Where ops of it are fused, the graph before that. Errors: ``PLAN_MISMATCH`` for another base, ``REWRITE_UNSOUND``
    for rows that stand for nothing of it, ``PLAN_UNSOUND`` where another graph than the plan's comes of it.
    """
    fit = fit_of(plan)
    require_rows(base, fit.rewrite)
    graph = rebuild_graph(base, fit.rewrite)
    require_graph(plan, graph)
    return graph


def fit_of(plan: Plan) -> FitRecord:
    """The plan's key ``fit``; ``INTERNAL`` for a plan of a graph as it is."""
    if plan.fit is None:
        raise InternalError("a plan without the key fit was asked for its base")
    return plan.fit


def require_graph(plan: Plan, graph: Graph) -> None:
    """``PLAN_UNSOUND`` unless a graph that was made of a plan's base and its key ``fit`` is the plan's.

    Where ops of the plan's graph are fused, the one that they were fused in.
    """
    fused = fit_of(plan).fused
    expected = plan.ir_hash if fused is None else fused.rewritten_hash
    if graph.ir_hash != expected:
        raise PlanUnsound(
            f"its key fit makes graph {graph.ir_hash.hex()[:16]} of its base, not {expected.hex()[:16]}",
            fix="do not run it; please report it",
        )


def judge_fitted(base: Graph, plan: Plan, *, token: bytes | None = None, fused: Graph | None = None) -> Graph:
    """The plan's graph, made of its base, once both judges have passed it.

    ``fused``: the plan's graph, where ops of what is made of the base are fused; without it nobody judges its plan.
    Errors: those of ``rebuild_fitted``, of the judge of plans, and ``REWRITE_UNSOUND``; that of a broken rule where
    the base is not legal.
    """
    require_legal(base)
    graph = rebuild_fitted(base, plan)
    planned = graph if fit_of(plan).fused is None else fused
    if planned is not None:
        judge(planned, plan, token=token)
    require_meaning(base, graph, fit_of(plan).rewrite, near=frozenset(fit_of(plan).near))
    return planned or graph


def load_base(path: Path, plan: Plan, token: bytes | None, *, plan_name: str) -> Graph:
    """The base's graph of a file, legal; both judges have passed what the plan makes of it. Errors name the files.

    Of a plan of fused ops, whose graph no base makes, the judge of rewrites alone has passed what they were fused in.
    """
    base = load_graph(path)
    naming_file(str(path), lambda: require_legal(base))
    naming_file(f"{plan_name} on {path}", lambda: judge_fitted(base, plan, token=token))
    return base


def write_fitted(  # noqa: PLR0913 - what the files hold, by name
    folder: Path,
    name: str,
    *,
    base: Graph,
    plan: Plan,
    token: bytes | None = None,
    fused: Graph | None = None,
    beside: Sequence[tuple[Path, bytes]] = (),
) -> tuple[Path, ...]:
    """Base, rewritten graph and plan are in their files (``fitted_paths``), all or none, after both judges; and so is
    what is to be ``beside`` them. ``fused``: the plan's graph, where its ops are fused.

    Errors: those of ``judge_fitted``, and ``INVALID_CONFIG`` where a file cannot be written.
    """
    graph = judge_fitted(base, plan, token=token, fused=fused)
    paths = fitted_paths(folder, name)
    contents = encode_graph(base), encode_graph(graph), encode_plan(plan)
    write_together([*zip(paths, contents, strict=True), *beside])
    return paths
