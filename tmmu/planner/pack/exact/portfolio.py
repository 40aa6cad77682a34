"""Many short searches before one long one: orders in turn, each round with twice the nodes of the one before."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tmmu.planner.pack.exact.answers import Answer, Verdict
from tmmu.planner.pack.exact.instance import Instance, spread
from tmmu.planner.pack.exact.memory import items_of, sections_of, stack_of, state_of
from tmmu.planner.pack.exact.orders import ORDERS, Shape, ranks, shape_of
from tmmu.planner.pack.exact.search import IMPOSSIBLE, PLACED, search
from tmmu.planner.pack.exact.state import Items, Sections, Stack

FIRST_LIMIT: Final = 500
NOISES: Final = (0, 32, 96)
MODES: Final = (0, 5)
BY_STATUS: Final[dict[int, Answer]] = {PLACED: "placed", IMPOSSIBLE: "impossible"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One search: an order, how much it is disturbed and how, a rule of choice, and its most nodes."""

    order: str
    noise: int
    seed: int
    mode: int
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


def tries() -> Iterator[Try]:
    """The searches, in turn and without end."""
    limit, seed = FIRST_LIMIT, 0
    while True:
        for noise in NOISES:
            for mode in MODES:
                for order in ORDERS:
                    seed += 1
                    yield Try(order=order, noise=noise, seed=seed, mode=mode, nodes=limit)
        limit *= 2


def attempt(desk: Desk, capacity: int, one: Try, limit: int) -> Found:
    """What one search finds within its own limit and ``limit`` nodes."""
    instance, items = desk.instance, desk.items
    for item, place in enumerate(ranks(desk.shape, one.order, noise=one.noise, seed=one.seed)):
        items.rank[item] = place
        items.last[item] = (capacity - instance.byte[item]) // instance.unit
    state = state_of(instance)
    cap = -(-capacity // instance.unit)
    most = min(one.nodes, limit)
    status, nodes = search(items, state, desk.sections, desk.stack, instance.sections, cap, most, one.mode)
    offset = tuple(int(value) for value in state.offset) if status == PLACED else ()
    return Found(state=BY_STATUS.get(status, "unknown"), offset=offset, nodes=int(nodes))


def solve(desk: Desk, capacity: int, nodes: int) -> Found:
    """Offsets below ``capacity``, the proof that there are none, or neither after ``nodes`` nodes."""
    spent = 0
    for one in tries():
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
