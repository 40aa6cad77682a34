"""The exact search in plans: only where it is asked for, only where the packers miss, never worse."""

import pytest

from tmmu.ir.problem import Problem
from tmmu.planner.layout import place_packed
from tmmu.planner.pack import solve

ITEMS = Problem(size=(4, 5, 3, 4, 5), birth=(0, 0, 0, 2, 3), death=(3, 4, 6, 7, 6))


def test_without_nodes_no_search_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmmu.planner.layout.improve", lambda *a, **k: pytest.fail("searched"))
    place_packed(ITEMS)


def test_with_nodes_the_result_is_never_worse_and_goes_no_further_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(*args: object, nodes: int) -> object:
        asked.append(nodes)
        return solve.improve(*args, nodes=nodes)  # type: ignore[arg-type]

    monkeypatch.setattr("tmmu.planner.layout.improve", counted)
    for seed in range(40):
        sizes = tuple((seed * 7 + i * 13) % 11 + 1 for i in range(14))
        births = tuple((seed * 3 + i * 5) % 12 for i in range(14))
        problem = Problem(size=sizes, birth=births, death=tuple(b + 2 + (b + i) % 5 for i, b in enumerate(births)))
        assert place_packed(problem, nodes=500).peak <= place_packed(problem).peak
    assert set(asked) <= {500}
