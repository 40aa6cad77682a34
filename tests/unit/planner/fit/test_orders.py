"""Orders of rows: each is one, and what the ones that free early save."""

import pytest

from tests.unit.planner.fit.random_steps import random_step
from tmmu.planner.arenas import default_arenas
from tmmu.planner.fit.orders import (
    ORDERS,
    SMALL_SHARE,
    Order,
    RowUses,
    free_first,
    late,
    late_then_free,
    places_of,
    row_uses,
    small_first,
)
from tmmu.planner.fit.step_facts import step_facts

SMALL, LARGE = 12, 100


def uses_of(rows: list[tuple[set[int], set[int]]], size: list[int]) -> RowUses:
    """Rows of what each reads and writes; what reads a buffer comes after those that wrote it before."""
    before = [
        frozenset(e for e in range(row) if rows[e][1] & (reads | writes) or rows[e][0] & writes)
        for row, (reads, writes) in enumerate(rows)
    ]
    after = [frozenset(later for later, earlier in enumerate(before) if row in earlier) for row in range(len(rows))]
    return RowUses(
        size=size,
        reads=[frozenset(reads) for reads, _ in rows],
        writes=[frozenset(writes) for _, writes in rows],
        outputs=frozenset(),
        before=before,
        after=after,
        first=tuple(range(len(rows))),
    )


def peak_of(uses: RowUses, order: Order) -> int:
    """Bytes live at the fullest row."""
    touched = [uses.reads[row] | uses.writes[row] for row in order]
    last = {buffer: place for place, row in enumerate(touched) for buffer in row}
    live, peak = set[int](), 0
    for place, row in enumerate(touched):
        live |= row
        peak = max(peak, sum(uses.size[buffer] for buffer in live))
        live -= {buffer for buffer in row if last[buffer] == place}
    return peak


def layers(count: int) -> RowUses:
    """Of each layer, backward: two operands that are made with the gradient of the layer below; then a small gradient
    of one and a large one of the other, each read, and changed, by its update.
    """
    rows: list[tuple[set[int], set[int]]] = [(set(), {0})]
    size = [10]
    for _ in range(count):
        first = len(size)
        size += [10, 10, 20, SMALL, LARGE]
        below, a, b, small, large = range(first, first + 5)
        above = first - 5 if first > 1 else 0
        rows += [({above}, {below, a, b}), ({a}, {small}), ({small}, {small}), ({b}, {large}), ({large}, {large})]
    return uses_of(rows, size)


@pytest.mark.parametrize("seed", range(40))
def test_orders_keep_the_edges(seed: int) -> None:
    graph = random_step(seed)
    facts = step_facts(graph, default_arenas())
    for name, order in ORDERS:
        places = {row: place for place, row in enumerate(order(row_uses(facts, tuple(graph.ops.ids))))}
        assert sorted(places) == [*graph.ops.ids], name
        assert all(places[row] < places[later] for row in places for later in facts.after[row]), name


def test_small_gradients_and_their_updates_do_not_wait_for_large_ones() -> None:
    uses = layers(4)
    gradients_last = [row + (row % 5 != 1) * len(uses) for row in range(len(uses))]
    waiting = free_first(uses, gradients_last)
    early = free_first(uses, gradients_last, spare=SMALL)
    assert peak_of(uses, waiting) == 20 + 3 * (10 + 20) + LARGE
    assert peak_of(uses, early) == 4 * 20 + LARGE


def test_what_is_small_goes_by_what_takes_most() -> None:
    uses = layers(4)
    assert small_first(uses) == free_first(uses, places_of(late(uses)), spare=LARGE // SMALL_SHARE)


def test_nothing_is_small_that_something_else_still_reads() -> None:
    uses = uses_of([(set(), {0, 1}), ({0}, {2}), ({2}, {2}), ({1}, {3}), ({2, 3}, {2})], [1, 1, 50, 1])
    assert small_first(uses) == late_then_free(uses)
