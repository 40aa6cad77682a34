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


def uses_of(
    rows: list[tuple[set[int], set[int]]], size: list[int], edges: frozenset[tuple[int, int]] = frozenset()
) -> RowUses:
    """Rows of what each reads and writes; what reads a buffer comes after those that wrote it before.

    ``edges``: further pairs of a row and one after it.
    """
    before = [
        frozenset(e for e in range(row) if rows[e][1] & (reads | writes) or rows[e][0] & writes or (e, row) in edges)
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


def trained(count: int, *, on_lists: bool) -> RowUses:
    """A forward pass that leaves 50 bytes a layer, then backward, the last layer first, what a small and a large
    gradient are made of, the two, and their updates.

    An update changes its gradient; ``on_lists``, two rows read it and make nothing, then comes a temporary of its size,
    which is changed, and read by one more that makes nothing.
    """
    rows, size, edges = [(set[int](), {0})], [1], set[tuple[int, int]]()
    for layer in range(count):
        size.append(50)
        rows.append(({layer}, {layer + 1}))
    above = 0
    for layer in reversed(range(count)):
        within, below, a, b, *pairs = range(len(size), len(size) + 8)
        size += [10, 1, 1, 2, SMALL, LARGE, SMALL, LARGE]
        rows += [({layer + 1, above}, {within}), ({layer + 1, within}, {below, a, b})]
        above = below
        for operand, gradient, temporary in zip((a, b), pairs[:2], pairs[2:], strict=True):
            rows.append(({operand}, {gradient}))
            if on_lists:
                edges |= {(len(rows) + moment, len(rows) + 2) for moment in range(2)}
                rows += [({gradient}, set()), ({gradient}, set())]
                rows += [(set(), {temporary}), ({temporary}, {temporary}), ({temporary}, set())]
            else:
                rows.append(({gradient}, {gradient}))
    return uses_of(rows, size, frozenset(edges))


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


@pytest.mark.parametrize("on_lists", [False, True])
def test_small_gradient_follows_what_it_is_made_of_whoever_reads_it(*, on_lists: bool) -> None:
    uses = trained(4, on_lists=on_lists)
    backward = {row: sorted(writes)[1:] for row, writes in enumerate(uses.writes) if len(writes) == 3}
    of_small = {row: next(r for r, reads in enumerate(uses.reads) if reads == {a}) for row, (a, _) in backward.items()}
    last_place = [row + (row > 4 and len(uses.reads[row]) < 2) * len(uses) for row in range(len(uses))]
    early, waiting = (places_of(free_first(uses, last_place, spare=spare)) for spare in (SMALL, -1))
    assert all(early[gradient] == early[row] + 1 for row, gradient in of_small.items())
    assert all(waiting[gradient] > max(waiting[row] for row in backward) for gradient in of_small.values())


def test_what_is_small_goes_by_what_takes_most() -> None:
    uses = layers(4)
    assert small_first(uses) == free_first(uses, places_of(late(uses)), spare=LARGE // SMALL_SHARE)


@pytest.mark.parametrize("on_lists", [False, True])
def test_large_gradients_wait_until_what_the_forward_pass_left_is_gone(*, on_lists: bool) -> None:
    uses = trained(6, on_lists=on_lists)
    assert peak_of(uses, uses.first) > 5 * 50 + LARGE
    assert peak_of(uses, small_first(uses)) == 6 * 50 + 10 + 4


def test_late_orders_alone_keep_updates_of_lists_beside_their_gradients() -> None:
    """So that both are tried: where weights are small, an update is better early."""
    uses = trained(6, on_lists=True)
    assert peak_of(uses, late_then_free(uses)) > 5 * 50 + LARGE


def test_nothing_is_small_that_something_else_still_reads() -> None:
    uses = uses_of([(set(), {0, 1}), ({0}, {2}), ({2}, {2}), ({1}, {3}), ({2, 3}, {2})], [1, 1, 50, 1])
    assert small_first(uses) == late_then_free(uses)
