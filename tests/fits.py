"""Rewrites of captured steps with their plans, as a planner that fits steps leaves them."""

from collections.abc import Mapping
from dataclasses import replace

from tmmu.ir.fit import FitRecord, fit_cost
from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId
from tmmu.ir.plan import Plan
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import RERUN, SAME, Rewrite
from tmmu.planner.arenas import default_arenas
from tmmu.planner.fit.early_updates import early_updates
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed

TOKEN = token_from_seed(0)


def find(graph: Graph, target: str) -> OpId:
    """The first op of this operator of aten's."""
    return OpId(graph.ops.target.index(f"aten.{target}"))


def unchanged(base: Graph) -> Rewrite:
    """Every op as it is."""
    ops = tuple(base.ops.ids)
    return Rewrite(base_hash=base.ir_hash, origin=ops, kind=(SAME,) * len(ops), part=((),) * len(ops))


def with_row(
    rewrite: Rewrite, row: int, origin: OpId, kind: str = RERUN, part: tuple[int, int] | None = None
) -> Rewrite:
    """One op more, before the one that is at ``row`` now."""

    def insert(column: tuple[object, ...], cell: object) -> tuple[object, ...]:
        return (*column[:row], cell, *column[row:])

    columns = {"origin": insert(rewrite.origin, origin), "kind": insert(rewrite.kind, kind)}
    return replace(rewrite, **columns, part=insert(rewrite.part, part or ()))  # type: ignore[arg-type]


def with_reruns(rewrite: Rewrite, base: Graph, reruns: Mapping[str, str]) -> Rewrite:
    """By operator that runs again, the operator before which it does; ``""`` for the end."""
    for again, before in reruns.items():
        row = rewrite.origin.index(find(base, before)) if before else len(rewrite)
        rewrite = with_row(rewrite, row, find(base, again))
    return rewrite


def early_updates_and_reruns(base: Graph, reruns: Mapping[str, str]) -> Rewrite:
    """Updates right after their gradients, and ops that run again."""
    return with_reruns(early_updates(base, smallest=1), base, reruns)


def fit_plan(base: Graph, rewrite: Rewrite, *, mode: str = "backward") -> Plan:
    """The plan of what a rewrite makes of a step."""
    graph = rebuild_graph(base, rewrite)
    plan = prepare_memory(graph, mode=mode, preset="train_full", token=TOKEN, arenas=default_arenas())
    cost = fit_cost(graph, rewrite, time_ppm=40_000)
    return replace(plan, fit=FitRecord(rewrite=rewrite, cost=cost, budget_bytes=1 << 20, levers=("early updates",)))
