"""Planning a golden case again: by the planner, by the reference simulator, and before the judge."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tmmu.errors import ArenaTooSmall, PlanError, TmmuError
from tmmu.golden.cases import Case, Config, graph_of
from tmmu.golden.difference import first_difference
from tmmu.golden.digests import KINDS, Digests, as_simulated, digests_of
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan, encode_plan
from tmmu.ir.ring import Ring
from tmmu.judge.check import judge
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.ring.prepare import RingRequest, prepare_ring
from tmmu.planner.token import token_from_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan of a case: its digests, or the code with which it was refused."""

    seed: int
    config: Config
    digests: tuple[str, ...]
    """In the order of ``KINDS``; of a refusal, the code alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The rows of one case in one preset and mode, by seed.

    ``plan`` is the file of the first seed's plan, empty where it was refused or the graph is made by a recipe.
    ``faults`` say where planner and simulator disagree, and what the judge found.
    """

    rows: tuple[Row, ...]
    plan: bytes
    faults: tuple[str, ...]


def replay(folder: Path, case: Case, config: Config) -> Replay:
    """The case planned anew in one preset and mode, under every seed."""
    graph = graph_of(folder, case)
    rows, faults, kept, ring = list[Row](), list[str](), b"", None
    for number, seed in enumerate(case.seeds):
        try:
            plan = _plan(graph, case, config, seed, ring)
        except TmmuError as error:
            rows.append(Row(seed=seed, config=config, digests=(error.code,)))
            faults += _unfounded(graph, case, config, seed, error)
            continue
        ring = plan.ring
        rows.append(Row(seed=seed, config=config, digests=_texts(digests_of(plan))))
        faults += () if faults else _disagreements(graph, case, plan, seed)
        if not number and not case.recipe:
            kept = encode_plan(plan)
            faults += _unsound(graph, plan, seed)
    return Replay(rows=tuple(rows), plan=kept, faults=tuple(faults))


def _plan(graph: Graph, case: Case, config: Config, seed: int, ring: Ring | None = None) -> Plan:
    """The plan under one seed. ``ring`` is the one under another: a token names places, and finds none."""
    token = token_from_seed(seed)
    plan = prepare_memory(graph, mode=config.mode, preset=config.preset, token=token, arenas=case.arenas)
    if not case.ring:
        return plan
    return replace(plan, ring=ring) if ring else prepare_ring(graph, plan, RingRequest(capacity=case.ring))


def _unfounded(graph: Graph, case: Case, config: Config, seed: int, error: TmmuError) -> Iterator[str]:
    """Whether what was called too small has room for the simulator's slots; other layouts are left free."""
    if error.code != ArenaTooSmall.code:
        return
    free = replace(case, arenas=tuple(replace(spec, capacity=0) for spec in case.arenas), ring=0)
    plan = as_simulated(graph, _plan(graph, free, config, seed), token=token_from_seed(seed), arenas=case.arenas)
    limited = [(i, spec.capacity) for i, spec in enumerate(case.arenas) if spec.capacity]
    limited += [(i, case.ring) for i, spec in enumerate(case.arenas) if case.ring and spec.name == "parameters"]
    if any(case.arenas[i].layout not in ("slots", "sequential") for i, _ in limited):
        return
    needs = [sum(n for a, n in zip(plan.slots.arena, plan.slots.bytes, strict=True) if a == i) for i, _ in limited]
    if all(need <= capacity for need, (_, capacity) in zip(needs, limited, strict=True)):
        yield f"seed {seed}: the planner refuses what by the simulator's slots fits: {error.what}"


def _texts(digests: Digests) -> tuple[str, ...]:
    return tuple(getattr(digests, kind) for kind in KINDS)


def _disagreements(graph: Graph, case: Case, plan: Plan, seed: int) -> Iterator[str]:
    """The first thing that the specification fixes and on which planner and simulator part."""
    wanted = as_simulated(graph, plan, token=token_from_seed(seed), arenas=case.arenas)
    for kind, one, other in zip(KINDS, _texts(digests_of(plan)), _texts(digests_of(wanted)), strict=True):
        if one != other:
            where = first_difference(graph, kind, wanted, plan)
            yield f"seed {seed}: the planner's {kind} are not the simulator's: {where}"
            return


def _unsound(graph: Graph, plan: Plan, seed: int) -> Iterator[str]:
    try:
        judge(graph, plan, token=token_from_seed(seed))
    except PlanError as error:
        yield f"seed {seed}: the judge refuses the plan: {error.what}"
