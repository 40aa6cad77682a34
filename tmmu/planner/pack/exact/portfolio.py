"""Many short searches before one long one, each in an order of its own, until the nodes are spent."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tmmu.planner.pack.exact.answers import Answer, Verdict
from tmmu.planner.pack.exact.instance import Instance, spread
from tmmu.planner.pack.exact.kernel import CAP, END, IMPOSSIBLE, PLACED, search
from tmmu.planner.pack.exact.memory import aim, items_of, sections_of, stack_of, state_of
from tmmu.planner.pack.exact.orders import CYCLE, Order, Shape, ranks, shape_of
from tmmu.planner.pack.exact.state import Items, Sections, Stack

BY_STATUS: Final[dict[int, Answer]] = {PLACED: "placed", IMPOSSIBLE: "impossible"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One search: an order, how much it is disturbed and how, and its most nodes."""

    order: Order
    noise: int
    seed: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The answer for one instance: offsets in units per item where it was placed."""

    state: Answer
    offset: tuple[int, ...]
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """An instance with what all its searches share."""

    instance: Instance
    shape: Shape
    items: Items
    sections: Sections
    stack: Stack


def desk_of(instance: Instance) -> Desk:
    """Everything that a search of ``instance`` needs, made once."""
    return Desk(
        instance=instance,
        shape=shape_of(instance),
        items=items_of(instance),
        sections=sections_of(instance),
        stack=stack_of(instance),
    )


def tries(count: int) -> Iterator[Try]:
    """The searches of ``count`` items, in turn and without end; limits follow Luby's sequence, the seed is the turn.

    A search that succeeds hardly ever goes back: it takes a node per item, and a few more.
    """
    turn = 0
    while True:
        for noise, order in CYCLE:
            turn += 1
            yield Try(order=order, noise=noise, seed=turn, nodes=luby(turn) * (2 * count + 100))


def luby(turn: int) -> int:
    """1, 1, 2, 1, 1, 2, 4, ...: within a logarithm of the best schedule of restarts, whatever the search."""
    while True:
        bits = turn.bit_length()
        if turn == (1 << bits) - 1:
            return 1 << (bits - 1)
        turn -= (1 << (bits - 1)) - 1


def attempt(desk: Desk, capacity: int, one: Try, limit: int) -> Found:
    """What one search finds within its own limit and ``limit`` nodes."""
    instance = desk.instance
    capacity = instance.capped(capacity)
    aim(desk.items, instance, capacity, ranks(desk.shape, one.order, noise=one.noise, seed=one.seed))
    state = state_of(instance)
    desk.stack.at[CAP] = -(-capacity // instance.unit)
    desk.stack.at[END] = instance.sections
    status, nodes = search(desk.items, state, desk.sections, desk.stack, min(one.nodes, limit))
    offset = tuple(int(value) for value in state.offset) if status == PLACED else ()
    return Found(state=BY_STATUS.get(status, "unknown"), offset=offset, nodes=int(nodes))


def solve(desk: Desk, capacity: int, nodes: int) -> Found:
    """Offsets below ``capacity``, the proof that there are none, or neither after ``nodes`` nodes."""
    spent = 0
    for one in tries(len(desk.instance)):
        if spent >= nodes:
            break
        found = attempt(desk, capacity, one, nodes - spent)
        spent += found.nodes
        if found.state != "unknown":
            return Found(state=found.state, offset=found.offset, nodes=spent)
    return Found(state="unknown", offset=(), nodes=spent)


def find_parts(parts: tuple[Instance, ...], capacity: int, others: tuple[int, ...], nodes: int) -> Verdict:
    """The verdict for all parts together: the most loaded first, for it is the most likely not to fit."""
    if any(part.bound > capacity for part in parts):
        return Verdict(state="impossible", offset=(), nodes=0)
    offsets: dict[int, tuple[int, ...]] = {}
    open_parts, spent = False, 0
    for index in sorted(range(len(parts)), key=lambda index: (-parts[index].bound, index)):
        if not parts[index].searchable or spent >= nodes:
            open_parts = True
            continue
        found = solve(desk_of(parts[index]), capacity, nodes - spent)
        spent += found.nodes
        if found.state == "impossible":
            return Verdict(state="impossible", offset=(), nodes=spent)
        open_parts |= found.state == "unknown"
        offsets[index] = tuple(value * parts[index].unit for value in found.offset)
    if open_parts:
        return Verdict(state="unknown", offset=(), nodes=spent)
    offset = spread(parts, [offsets[index] for index in range(len(parts))], others)
    return Verdict(state="placed", offset=offset, nodes=spent)
