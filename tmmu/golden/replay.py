"""Replay of a golden case: planned anew, compared with the reference simulator, and judged."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tmmu.errors import ArenaTooSmall, PlanError, TmmuError
from tmmu.golden.cases import GoldenCase, PlanConfig, graph_of
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
class PlanRow:
    """One plan of a case: its digests in the order of ``KINDS``, or the error code of its refusal."""

    seed: int
    config: PlanConfig
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The rows of one case in one preset and mode, by seed.

    ``plan``: the encoded plan of the first seed, empty if it was refused or the case has a recipe. ``faults``:
    disagreements of planner and simulator, and faults that the judge found.
    """

    rows: tuple[PlanRow, ...]
    plan: bytes
    faults: tuple[str, ...]


def replay(folder: Path, case: GoldenCase, config: PlanConfig) -> Replay:
    """Plan the case in one preset and mode under every seed."""
    graph = graph_of(folder, case)
    rows, faults, encoded_plan, ring = list[PlanRow](), list[str](), b"", None
    for number, seed in enumerate(case.seeds):
        try:
            plan = _plan_case(graph, case, config, seed, ring)
        except TmmuError as error:
            rows.append(PlanRow(seed=seed, config=config, digests=(error.code,)))
            faults += _wrong_refusals(graph, case, config, seed, error)
            continue
        ring = plan.ring
        rows.append(PlanRow(seed=seed, config=config, digests=_digest_texts(digests_of(plan))))
        faults += () if faults else _disagreements(graph, case, plan, seed)
        if not number and not case.recipe:
            encoded_plan = encode_plan(plan)
            faults += _judge_faults(graph, plan, seed)
    return Replay(rows=tuple(rows), plan=encoded_plan, faults=tuple(faults))


def _plan_case(graph: Graph, case: GoldenCase, config: PlanConfig, seed: int, ring: Ring | None = None) -> Plan:
    """The plan under one seed. ``ring``: that of another seed, which is the same: a token changes addresses only."""
    token = token_from_seed(seed)
    plan = prepare_memory(graph, mode=config.mode, preset=config.preset, token=token, arenas=case.arenas)
    if not case.ring:
        return plan
    return replace(plan, ring=ring) if ring else prepare_ring(graph, plan, RingRequest(capacity=case.ring))


def _wrong_refusals(graph: Graph, case: GoldenCase, config: PlanConfig, seed: int, error: TmmuError) -> Iterator[str]:
    """A fault if an arena was refused as too small that holds the simulator's slots; packed layouts are not checked."""
    if error.code != ArenaTooSmall.code:
        return
    free = replace(case, arenas=tuple(replace(spec, capacity=0) for spec in case.arenas), ring=0)
    plan = as_simulated(graph, _plan_case(graph, free, config, seed), token=token_from_seed(seed), arenas=case.arenas)
    limited = [(i, spec.capacity) for i, spec in enumerate(case.arenas) if spec.capacity]
    limited += [(i, case.ring) for i, spec in enumerate(case.arenas) if case.ring and spec.name == "parameters"]
    if any(case.arenas[i].layout not in ("slots", "sequential") for i, _ in limited):
        return
    needs = [sum(n for a, n in zip(plan.slots.arena, plan.slots.bytes, strict=True) if a == i) for i, _ in limited]
    if all(need <= capacity for need, (_, capacity) in zip(needs, limited, strict=True)):
        yield f"seed {seed}: the planner refuses what by the simulator's slots fits: {error.what}"


def _digest_texts(digests: Digests) -> tuple[str, ...]:
    return tuple(getattr(digests, kind) for kind in KINDS)


def _disagreements(graph: Graph, case: GoldenCase, plan: Plan, seed: int) -> Iterator[str]:
    """The first kind of digest in which planner and simulator differ."""
    simulated = as_simulated(graph, plan, token=token_from_seed(seed), arenas=case.arenas)
    for kind, actual, expected in zip(
        KINDS, _digest_texts(digests_of(plan)), _digest_texts(digests_of(simulated)), strict=True
    ):
        if actual != expected:
            difference = first_difference(graph, kind, simulated, plan)
            yield f"seed {seed}: the planner's {kind} are not the simulator's: {difference}"
            return


def _judge_faults(graph: Graph, plan: Plan, seed: int) -> Iterator[str]:
    try:
        judge(graph, plan, token=token_from_seed(seed))
    except PlanError as error:
        yield f"seed {seed}: the judge refuses the plan: {error.what}"
