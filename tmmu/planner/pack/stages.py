"""Packing stages: a table of pure functions that run in order until no lower packing is possible or asked for.

State: the best offsets and peak so far, the best lower bound, and the search nodes spent. Invariants: no stage raises
the peak, lowers the bound or exceeds ``search_nodes``; bound <= peak once there is a packing, and where they are equal
it is optimal. The tables are finite and each stage is limited by work or nodes, so that every run ends. Cheap
bounds and heuristics come first (``HEURISTICS``), then exact search (``SEARCH``); see docs/spec/packing.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tmmu.ir.problem import PackProblem, Problem
from tmmu.planner.pack import exact, skyline
from tmmu.planner.pack.blocks import ItemBlock, join_items, offsets_of_members, problem_of_blocks
from tmmu.planner.pack.bounds import lower_bound
from tmmu.planner.pack.instance import WORD_LIMIT, PackingInstance, prepare_instance
from tmmu.planner.pack.lowest import lowest_fit
from tmmu.planner.pack.obstacles import best_around_fixed, prepare_constrained
from tmmu.planner.pack.portfolio import CandidatePacking, best_packer, best_walk, make_candidate
from tmmu.planner.pack.table import lowest_work
from tmmu.planner.pack.windows import lower_windows

DECIDE_SHARE: Final = 4
MINIMIZE_SHARE: Final = 6
WINDOWS_SHARE: Final = 2
WINDOWS_REST: Final = 4
LEAST_REPAIRED: Final = 1_000
"""Items from which windows gain more than the beams lose by the nodes for them."""
PROOF_SHARE: Final = 16
BLOCKS_SHARE: Final = 4
MOST_BLOCKS: Final = (3, 4)
MOST_LOOSE_BLOCKS: Final = (1, 2)
"""Of items, where blocks are tried."""
SKYLINE_WORK: Final = 7
"""Cells that a skyline search looks at in the time that an exact search takes for a node and item (0.2 us)."""
SKYLINE_ITEMS: Final = 100_000
"""Items of more than which a skyline search takes longer to prepare than its share of the nodes lets it run."""
SEARCH_ITEMS: Final = 5_000
"""Above this the exact search visits too few nodes to be worth its set-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingState:
    """Best packing and bound of a problem whose items all have 1 byte or more and are sorted by birth.

    ``peak`` is that of ``offset``, -1 without offsets; a peak of ``target`` or less is good enough; ``capacity`` is 0
    where none was asked for. ``nodes_visited`` of at most ``search_nodes`` are spent; ``work`` limits local search, in
    overlaps looked at. ``report`` is told of progress and decides nothing. ``items``: those of all components that
    share the nodes, 0 for the problem's own.
    """

    problem: PackProblem
    target: int
    search_nodes: int
    work: int = 0
    capacity: int = 0
    offset: tuple[int, ...] = ()
    peak: int = -1
    bound: int = 0
    method: str = "none"
    nodes_visited: int = 0
    report: skyline.Report | None = None
    items: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the peak is optimal or at ``target``."""
        return 0 <= self.peak <= max(self.bound, self.target)

    @property
    def is_searchable(self) -> bool:
        """Whether an exact search is worth its set-up and has nodes left."""
        return len(self.problem) <= SEARCH_ITEMS and self.nodes_visited < self.search_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingStage:
    """A named step: a pure function that never raises the peak or lowers the bound."""

    name: str
    run: Callable[[PackingState], PackingState]


def run_stages(state: PackingState, stages: Sequence[PackingStage]) -> PackingState:
    """The state after the stages in turn, up to the first at which it is done."""
    for stage in stages:
        if state.is_done:
            break
        state = stage.run(state)
    return state


def raise_bound(state: PackingState) -> PackingState:
    """Raise the bound to the highest that needs no search."""
    return replace(state, bound=max(state.bound, lower_bound(state.problem)))


def run_heuristics(state: PackingState) -> PackingState:
    """Run the packers of ``table.py`` on sizes padded to the widest alignment; skipped with fixed offsets."""
    if any(offset >= 0 for offset in state.problem.fixed):
        return state
    instance = _padded_instance(state)
    return _keep_lower_candidate(state, instance, best_packer(instance)[0])


def local_search(state: PackingState) -> PackingState:
    """Walk from the current packing; skipped where ``run_constrained_heuristics`` has walked already."""
    if len(set(state.problem.alignment)) > 1 or any(offset >= 0 for offset in state.problem.fixed):
        return state
    instance = _padded_instance(state)
    return _keep_lower_candidate(state, instance, best_walk(instance, _current_candidate(state, instance), state.work))


def _padded_instance(state: PackingState) -> PackingInstance:
    problem = state.problem
    step = max(problem.alignment)
    padded = tuple(-(-size // step) * step for size in problem.size)
    plain = Problem(size=padded, birth=problem.birth, death=problem.death, alignment=step)
    # Padded peaks are multiples of ``step``; packers that place items right below the bound rely on that.
    return prepare_instance(plain, -(-state.bound // step) * step)


def _current_candidate(state: PackingState, instance: PackingInstance) -> CandidatePacking:
    offset = np.array(state.offset, dtype=instance.size.dtype)[instance.item]
    return make_candidate(instance, state.method, offset)


def _keep_lower_candidate(state: PackingState, instance: PackingInstance, candidate: CandidatePacking) -> PackingState:
    offset = np.empty(len(instance), dtype=object)
    offset[instance.item] = candidate.offset
    return keep_lower(state, tuple(int(low) for low in offset.tolist()), candidate.method)


def run_constrained_heuristics(state: PackingState) -> PackingState:
    """Run the heuristics that obey mixed alignments and fixed offsets; skipped where there are neither."""
    problem = state.problem
    if len(set(problem.alignment)) == 1 and all(fixed < 0 for fixed in problem.fixed):
        return state
    constrained = prepare_constrained(problem, state.bound)
    best = best_around_fixed(problem, constrained)
    offset = [0] * len(problem)
    for item, low in zip(constrained.instance.item.tolist(), best.offset.tolist(), strict=True):
        offset[item] = low
    return keep_lower(state, tuple(offset), best.method)


def keep_lower(state: PackingState, offset: tuple[int, ...], method: str) -> PackingState:
    """The state with these offsets if they have a lower peak; ties keep the earlier."""
    peak = max(low + size for low, size in zip(offset, state.problem.size, strict=True))
    if 0 <= state.peak <= peak:
        return state
    return replace(state, offset=offset, peak=peak, method=method)


def decide(state: PackingState) -> PackingState:
    """Search exactly for a packing at the capacity, or prove that there is none.

    Without a capacity, the question is whether a packing meets the bound, for ``1 / DECIDE_SHARE`` of the nodes: often
    none does. With one, that share is left for the skyline search.
    """
    goal = state.capacity or max(state.target, state.bound)
    if goal < state.bound or not state.is_searchable:
        return state
    nodes_left = state.search_nodes - state.nodes_visited
    share = -(-nodes_left // DECIDE_SHARE)
    budget = max(nodes_left - share, 1) if state.capacity else share
    verdict = exact.find(state.problem, goal, search_nodes=budget)
    state = replace(state, nodes_visited=state.nodes_visited + verdict.nodes_visited)
    if verdict.status == "placed":
        return keep_lower(state, tuple(verdict.offset), "exact")
    return replace(state, bound=goal + 1) if verdict.status == "impossible" else state


def prove_early(state: PackingState) -> PackingState:
    """Minimize with ``1 / PROOF_SHARE`` of the nodes: what is easily proven needs no skyline."""
    if state.capacity or not state.is_searchable:
        return state
    return _minimize_within(state, -(-(state.search_nodes - state.nodes_visited) // PROOF_SHARE))


def pack_blocks(state: PackingState) -> PackingState:
    """Pack blocks in place of items, verified joins first, with ``1 / BLOCKS_SHARE`` of the nodes left each.

    Skipped where few items join, where offsets are fixed or sizes are no multiples of one alignment, and of more items
    than the exact search takes: finding what joins is no counted work.
    """
    problem = state.problem
    if not _is_plain(problem) or len(problem) > SEARCH_ITEMS:
        return state
    for loosely, (part, whole) in ((False, MOST_BLOCKS), (True, MOST_LOOSE_BLOCKS)):
        nodes = (state.search_nodes - state.nodes_visited) // BLOCKS_SHARE
        if not nodes or state.is_done:
            break
        blocks = join_items(problem, loosely=loosely)
        if len(blocks) * whole <= len(problem) * part:
            state = _pack_joined(state, blocks, nodes)
    return state


def _pack_joined(state: PackingState, blocks: Sequence[ItemBlock], nodes: int) -> PackingState:
    start = replace(
        state,
        problem=problem_of_blocks(blocks, max(state.problem.alignment)),
        target=max(state.target, state.bound),
        search_nodes=nodes,
        items=max(state.items, len(state.problem)),
        offset=(),
        peak=-1,
        bound=0,
        nodes_visited=0,
    )
    packed = run_stages(start, (*HEURISTICS, *BLOCK_SEARCH))
    better = keep_lower(state, offsets_of_members(blocks, packed.offset), "blocks")
    return replace(better, nodes_visited=state.nodes_visited + packed.nodes_visited)


def build_skylines(state: PackingState) -> PackingState:
    """Lower the peak by skyline search with all nodes left but ``1 / MINIMIZE_SHARE`` for the exact search.

    Where windows follow, half the nodes are left for both. Skipped where offsets are fixed or items are too many. Its
    work is counted in nodes that an exact search of all components visits in the time.
    """
    nodes_left = state.search_nodes - state.nodes_visited
    is_large = len(state.problem) > SKYLINE_ITEMS
    if nodes_left <= 0 or is_large or any(offset >= 0 for offset in state.problem.fixed):
        return state
    node_work = SKYLINE_WORK * max(state.items, len(state.problem))
    is_last = state.capacity or len(state.problem) > SEARCH_ITEMS
    share = WINDOWS_SHARE if _is_repaired(state.problem) else MINIMIZE_SHARE
    budget = node_work * (nodes_left if is_last else nodes_left - nodes_left // share)
    goal = max(state.target, state.bound)
    offset, work = skyline.lower_packing(state.problem, state.offset, goal=goal, work=budget, report=state.report)
    better = keep_lower(state, offset, "skyline")
    return replace(better, nodes_visited=min(state.nodes_visited - (-work // node_work), state.search_nodes))


def settle_items(state: PackingState) -> PackingState:
    """Move every item, the lowest first, into the lowest gap that holds it, within the work of local search.

    For more items than windows, which begin so, are tried on; skipped with fixed offsets or mixed alignments.
    """
    problem = state.problem
    if len(problem) <= SEARCH_ITEMS or len(set(problem.alignment)) > 1 or max(problem.fixed) >= 0:
        return state
    instance = _padded_instance(state)
    if lowest_work(instance) > state.work:
        return state
    order = np.argsort(_current_candidate(state, instance).offset, kind="stable")
    return _keep_lower_candidate(state, instance, make_candidate(instance, "settle", lowest_fit(instance, order)))


def repair_windows(state: PackingState) -> PackingState:
    """Lower the peak by exact search on windows, with all nodes left but ``1 / WINDOWS_REST``."""
    problem, nodes_left = state.problem, state.search_nodes - state.nodes_visited
    if nodes_left <= 0 or not _is_repaired(problem):
        return state
    node_work = max(state.items, len(problem))
    budget = node_work * (nodes_left - nodes_left // WINDOWS_REST)
    goal = max(state.target, state.bound)
    offset, work = lower_windows(problem, state.offset, goal=goal, work=budget, report=state.report)
    better = keep_lower(state, offset, "windows")
    return replace(better, nodes_visited=min(state.nodes_visited - (-work // node_work), state.search_nodes))


def _is_repaired(problem: PackProblem) -> bool:
    """Whether windows are tried: on items that are many, but not more than the exact search takes."""
    is_sized = LEAST_REPAIRED <= len(problem) <= SEARCH_ITEMS
    return is_sized and _is_plain(problem) and sum(problem.size) < WORD_LIMIT // 2


def _is_plain(problem: PackProblem) -> bool:
    """Whether no offset is fixed and all sizes are multiples of one alignment."""
    step = max(problem.alignment)
    is_aligned = min(problem.alignment) == step and all(size % step == 0 for size in problem.size)
    return is_aligned and max(problem.fixed) < 0


def minimize(state: PackingState) -> PackingState:
    """Lower the peak by exact search with the remaining nodes; skipped where only a capacity was asked for."""
    if state.capacity or not state.is_searchable:
        return state
    return _minimize_within(state, state.search_nodes - state.nodes_visited)


def _minimize_within(state: PackingState, nodes: int) -> PackingState:
    minimum = exact.minimize(state.problem, state.offset, search_nodes=nodes)
    better = keep_lower(state, tuple(minimum.offset), "exact")
    return replace(
        better, bound=max(state.bound, minimum.bound), nodes_visited=state.nodes_visited + minimum.nodes_visited
    )


HEURISTICS: Final = (
    PackingStage(name="bounds", run=raise_bound),
    PackingStage(name="packers", run=run_heuristics),
    PackingStage(name="around", run=run_constrained_heuristics),
)

BLOCK_SEARCH: Final = (
    PackingStage(name="decide", run=decide),
    PackingStage(name="prove", run=prove_early),
    PackingStage(name="skyline", run=build_skylines),
)

SEARCH: Final = (
    PackingStage(name="decide", run=decide),
    PackingStage(name="walk", run=local_search),
    PackingStage(name="prove", run=prove_early),
    PackingStage(name="blocks", run=pack_blocks),
    PackingStage(name="skyline", run=build_skylines),
    PackingStage(name="settle", run=settle_items),
    PackingStage(name="windows", run=repair_windows),
    PackingStage(name="minimize", run=minimize),
)

SEARCH_AGAIN: Final = SEARCH[-4:]
"""Of a component that has been searched before, with more nodes."""
