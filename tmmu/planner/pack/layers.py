"""The layers of packing: one row each, in the order in which they run on a problem until it is solved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tmmu.ir.problem import PackProblem, Problem
from tmmu.planner.pack.bounds import lower_bound
from tmmu.planner.pack.exact import find, minimize
from tmmu.planner.pack.instance import Instance, prepare_instance
from tmmu.planner.pack.obstacles import best_around, prepare_board
from tmmu.planner.pack.portfolio import Try, best_packer, best_walk, measured

DECIDE_SHARE: Final = 4
SEARCH_ITEMS: Final = 5_000
"""More items than this, and the exact search looks at too few nodes to be worth its set-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known of a problem whose items all hold a byte and are sorted by birth.

    ``peak`` is that of ``offset`` and -1 while there is none; no packing is below ``bound``; nobody asks for
    less than ``target``; ``nodes`` are spent, at most ``limit`` of them. ``work`` is what walks may cost.
    """

    problem: PackProblem
    target: int
    limit: int
    work: int = 0
    capacity: int = 0
    offset: tuple[int, ...] = ()
    peak: int = -1
    bound: int = 0
    method: str = "none"
    nodes: int = 0

    @property
    def done(self) -> bool:
        """Nothing that anybody asks for is left to find."""
        return 0 <= self.peak <= max(self.bound, self.target)

    @property
    def searchable(self) -> bool:
        """Few enough items for the exact search, and nodes to spend."""
        return len(self.problem) <= SEARCH_ITEMS and self.nodes < self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A step towards the least peak: a name, and a pure function that never makes a state worse."""

    name: str
    run: Callable[[State], State]


def run_layers(state: State, layers: Sequence[Layer]) -> State:
    """The state after each layer in turn, stopping where it is done."""
    for layer in layers:
        if state.done:
            break
        state = layer.run(state)
    return state


def bounded(state: State) -> State:
    """With the sharpest bound that needs no search."""
    return replace(state, bound=max(state.bound, lower_bound(state.problem)))


def packed_plainly(state: State) -> State:
    """By the packers that know neither alignment nor given offsets; sizes are padded to the widest alignment."""
    if any(given >= 0 for given in state.problem.fixed):
        return state
    instance = _padded(state)
    return _improved_by(state, instance, best_packer(instance)[0])


def walked(state: State) -> State:
    """By walks from there, where alignments are one and no offset is given; the others have walked already."""
    if len(set(state.problem.alignment)) > 1 or any(given >= 0 for given in state.problem.fixed):
        return state
    instance = _padded(state)
    return _improved_by(state, instance, best_walk(instance, _known(state, instance), state.work))


def _padded(state: State) -> Instance:
    problem = state.problem
    step = max(problem.alignment)
    padded = tuple(-(-size // step) * step for size in problem.size)
    plain = Problem(size=padded, birth=problem.birth, death=problem.death, alignment=step)
    return prepare_instance(plain, state.bound)


def _known(state: State, instance: Instance) -> Try:
    offset = np.array(state.offset, dtype=instance.size.dtype)[instance.item]
    return measured(instance, state.method, offset)


def _improved_by(state: State, instance: Instance, found: Try) -> State:
    offset = np.empty(len(instance), dtype=object)
    offset[instance.item] = found.offset
    return improved(state, tuple(int(low) for low in offset.tolist()), found.method)


def packed_around(state: State) -> State:
    """By the heuristics that obey each item's own alignment and what is given."""
    problem = state.problem
    if len(set(problem.alignment)) == 1 and all(given < 0 for given in problem.fixed):
        return state
    board = prepare_board(problem, state.bound)
    method, found = best_around(problem, board)
    offset = [0] * len(problem)
    for item, low in zip(board.instance.item.tolist(), found.tolist(), strict=True):
        offset[item] = low
    return improved(state, tuple(offset), method)


def improved(state: State, offset: tuple[int, ...], method: str) -> State:
    """With these offsets where they are lower; ties go to the earlier."""
    peak = max(low + size for low, size in zip(offset, state.problem.size, strict=True))
    if 0 <= state.peak <= peak:
        return state
    return replace(state, offset=offset, peak=peak, method=method)


def decided(state: State) -> State:
    """With a packing that is low enough for whoever asks, or the knowledge that there is none.

    Without a capacity the bound is asked for, for a share of the nodes: often no packing meets it.
    """
    goal = state.capacity or max(state.target, state.bound)
    if goal < state.bound or not state.searchable:
        return state
    left = state.limit - state.nodes
    verdict = find(state.problem, goal, nodes=left if state.capacity else -(-left // DECIDE_SHARE))
    state = replace(state, nodes=state.nodes + verdict.nodes)
    if verdict.state == "placed":
        return improved(state, tuple(verdict.offset), "exact")
    return replace(state, bound=goal + 1) if verdict.state == "impossible" else state


def minimized(state: State) -> State:
    """With what the exact search makes of the rest of the nodes; nothing where a capacity was asked for."""
    if state.capacity or not state.searchable:
        return state
    found = minimize(state.problem, state.offset, nodes=state.limit - state.nodes)
    better = improved(state, tuple(found.offset), "exact")
    return replace(better, bound=max(state.bound, found.bound), nodes=state.nodes + found.nodes)


HEURISTICS: Final = (
    Layer(name="bounds", run=bounded),
    Layer(name="packers", run=packed_plainly),
    Layer(name="around", run=packed_around),
)

SEARCH: Final = (
    Layer(name="decide", run=decided),
    Layer(name="walk", run=walked),
    Layer(name="minimize", run=minimized),
)
