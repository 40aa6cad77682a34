"""The exact search in plans runs only with a node budget, and only where the packers are above the bound."""

import pytest

from tmmu.ir.problem import Problem
from tmmu.planner.layout import place_packed
from tmmu.planner.pack import solve

ITEMS = Problem(size=(4, 5, 3, 4, 5), birth=(0, 0, 0, 2, 3), death=(3, 4, 6, 7, 6))


def test_search_is_not_started_without_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmmu.planner.layout.improve", lambda *a, **k: pytest.fail("searched"))
    place_packed(ITEMS)


def arithmetic_problem(items: int, seed: int) -> Problem:
    births = tuple((seed * 3 + i * 5) % 12 for i in range(items))
    return Problem(
        size=tuple((seed * 7 + i * 13) % 11 + 1 for i in range(items)),
        birth=births,
        death=tuple(birth + 2 + (birth + i) % 5 for i, birth in enumerate(births)),
    )


ABOVE_BOUND = ((14, 23), (20, 38), (30, 13), (40, 12))
"""(items, seed) of problems that packers and walks leave above the bound."""


@pytest.mark.parametrize(("items", "seed"), ABOVE_BOUND)
def test_search_lowers_what_the_packers_miss(items: int, seed: int) -> None:
    problem = arithmetic_problem(items, seed)
    packed, searched = place_packed(problem), place_packed(problem, search_nodes=2000)
    assert packed.peak > packed.bound
    assert searched.peak == searched.bound
    assert searched.proven


def test_search_starts_only_above_the_bound_with_the_given_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[int] = []

    def count_nodes(*args: object, search_nodes: int) -> object:
        budgets.append(search_nodes)
        return solve.improve(*args, search_nodes=search_nodes)  # type: ignore[arg-type]

    monkeypatch.setattr("tmmu.planner.layout.improve", count_nodes)
    place_packed(arithmetic_problem(*ABOVE_BOUND[0]), search_nodes=500)
    place_packed(ITEMS, search_nodes=700)
    assert place_packed(ITEMS).proven
    assert budgets == [500]
