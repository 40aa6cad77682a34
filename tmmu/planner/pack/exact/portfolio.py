"""Restarts: many short searches in different orders before one long one, until the node budget is spent.

State: ``SearchWorkspace``, the arrays that all searches of an instance share. Each search is complete: if it ends
within its limit, its answer is final, whatever its order. Node limits follow Luby's sequence, within a logarithmic
factor of the best restart schedule for an unknown running time (Luby, Sinclair, Zuckerman 1993). The sequence of
searches is a function of the number of items alone; the budget bounds it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tmmu.planner.pack.exact.answers import SearchStatus, Verdict
from tmmu.planner.pack.exact.instance import SearchInstance, offsets_by_row
from tmmu.planner.pack.exact.kernel import CAP, END, IMPOSSIBLE, LIMIT, PLACED, WORK, search
from tmmu.planner.pack.exact.memory import make_items, make_sections, make_stack, make_state, set_capacity
from tmmu.planner.pack.exact.orders import CYCLE, ItemFeatures, Order, features_of, ranks
from tmmu.planner.pack.exact.state import SearchItems, SearchStack, SectionBounds

NODE_CELLS: Final = 80
"""Cells (4 to 5 ns each) that one node counts for, per item: published inputs need 20 to 80 of them."""
STATUS_OF_CODE: Final[dict[int, SearchStatus]] = {PLACED: "placed", IMPOSSIBLE: "impossible"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """One search: order, noise (of 256), seed of the noise, and node limit."""

    order: Order
    noise: int
    seed: int
    max_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The answer for one instance: offsets in units per item if placed."""

    status: SearchStatus
    offset: tuple[int, ...]
    nodes_visited: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchWorkspace:
    """An instance and the arrays that all its searches share."""

    instance: SearchInstance
    features: ItemFeatures
    items: SearchItems
    sections: SectionBounds
    stack: SearchStack


def node_work(instance: SearchInstance) -> int:
    """The most work of a node, in cells looked at: a search whose nodes are dearer visits fewer of them."""
    return NODE_CELLS * len(instance)


def make_workspace(instance: SearchInstance) -> SearchWorkspace:
    """The arrays for searches of ``instance``."""
    return SearchWorkspace(
        instance=instance,
        features=features_of(instance),
        items=make_items(instance),
        sections=make_sections(instance),
        stack=make_stack(instance),
    )


def search_configs(count: int) -> Iterator[SearchConfig]:
    """Endless sequence of searches for ``count`` items, with limits in multiples of ``2 * count + 100`` nodes.

    A search that succeeds hardly ever backtracks: it takes about a node per item.
    """
    index = 0
    while True:
        for noise, order in CYCLE:
            index += 1
            yield SearchConfig(order=order, noise=noise, seed=index, max_nodes=luby(index) * (2 * count + 100))


def luby(index: int) -> int:
    """Term ``index`` (from 1) of Luby's sequence 1, 1, 2, 1, 1, 2, 4, ..."""
    while True:
        bits = index.bit_length()
        if index == (1 << bits) - 1:
            return 1 << (bits - 1)
        index -= (1 << (bits - 1)) - 1


def run_search(workspace: SearchWorkspace, capacity: int, config: SearchConfig, nodes_left: int) -> SearchResult:
    """The result of one search within its own limit and ``nodes_left``, which limit its work as they do its nodes.

    ``nodes_visited`` is what was spent: the nodes, or the work in nodes of ``node_work``, whichever is more.
    """
    instance = workspace.instance
    capacity = instance.clamp_capacity(capacity)
    rank = ranks(workspace.features, config.order, noise=config.noise, seed=config.seed)
    set_capacity(workspace.items, instance, capacity, rank)
    state = make_state(instance)
    workspace.stack.cursor[CAP] = -(-capacity // instance.unit)
    workspace.stack.cursor[END] = instance.sections
    limit = min(config.max_nodes, nodes_left)
    workspace.stack.cursor[LIMIT] = node_work(instance) * limit
    code, nodes = search(workspace.items, state, workspace.sections, workspace.stack, limit)
    spent = max(int(nodes), -(-int(workspace.stack.cursor[WORK]) // node_work(instance)))
    offset = tuple(int(value) for value in state.offset) if code == PLACED else ()
    return SearchResult(status=STATUS_OF_CODE.get(code, "unknown"), offset=offset, nodes_visited=min(spent, limit))


def solve(workspace: SearchWorkspace, capacity: int, search_nodes: int) -> SearchResult:
    """Offsets below ``capacity`` bytes, a proof that there are none, or neither within ``search_nodes``."""
    spent = 0
    for config in search_configs(len(workspace.instance)):
        if spent >= search_nodes:
            break
        result = run_search(workspace, capacity, config, search_nodes - spent)
        spent += result.nodes_visited
        if result.status != "unknown":
            return SearchResult(status=result.status, offset=result.offset, nodes_visited=spent)
    return SearchResult(status="unknown", offset=(), nodes_visited=spent)


def find_parts(
    parts: tuple[SearchInstance, ...], capacity: int, default: tuple[int, ...], search_nodes: int
) -> Verdict:
    """The verdict for all components together, by bound: the fullest is the most likely not to fit."""
    if any(part.bound > capacity for part in parts):
        return Verdict(status="impossible", offset=(), nodes_visited=0)
    offsets: dict[int, tuple[int, ...]] = {}
    undecided, spent = False, 0
    for index in sorted(range(len(parts)), key=lambda index: (-parts[index].bound, index)):
        if not parts[index].is_searchable or spent >= search_nodes:
            undecided = True
            continue
        result = solve(make_workspace(parts[index]), capacity, search_nodes - spent)
        spent += result.nodes_visited
        if result.status == "impossible":
            return Verdict(status="impossible", offset=(), nodes_visited=spent)
        undecided |= result.status == "unknown"
        offsets[index] = tuple(value * parts[index].unit for value in result.offset)
    if undecided:
        return Verdict(status="unknown", offset=(), nodes_visited=spent)
    offset = offsets_by_row(parts, [offsets[index] for index in range(len(parts))], default)
    return Verdict(status="placed", offset=offset, nodes_visited=spent)
