"""Budgets follow use: not before enough was seen, at a rate, within bounds, to where use is."""

from hypothesis import given
from hypothesis import strategies as st

from tmmu.server.pressure.budget_tuner import COLLECTED, HISTORY, BudgetTuner, UseOfShare

USES = st.builds(UseOfShare, used=st.integers(0, 1_000_000), waits=st.integers(0, 3))


def tuner(**budgets: int) -> BudgetTuner:
    return BudgetTuner(budgets or {"a": 100_000, "b": 100_000}, floor=20_000, ceiling=400_000)


def test_nothing_moves_before_enough_was_seen() -> None:
    budgets = tuner()
    assert budgets.score == 100
    for _ in range(COLLECTED - 1):
        budgets.observe({"a": UseOfShare(used=0)})
        assert budgets.suggest() is None
        assert budgets.shift() is None
    budgets.observe({})
    assert budgets.suggest() == {"a": 20_000, "b": 20_000}


def test_shift_goes_a_tenth_of_the_way() -> None:
    budgets = tuner()
    for _ in range(COLLECTED):
        budgets.observe({"a": UseOfShare(used=200_000), "b": UseOfShare(used=50_000)})
    shift = budgets.shift()
    assert shift is not None
    assert (shift.before, shift.after) == ({"a": 100_000, "b": 100_000}, {"a": 112_000, "b": 95_500})
    assert shift.score == 75
    assert list(budgets.history) == [shift]
    assert budgets.violations == {"a": COLLECTED, "b": 0}


def test_steady_use_is_reached() -> None:
    budgets = tuner()
    for _ in range(200):
        budgets.observe({"a": UseOfShare(used=200_000), "b": UseOfShare(used=1_000)})
        budgets.shift()
    assert budgets.budgets == {"a": 220_000, "b": 20_000}
    assert budgets.shift() is None


def test_who_has_to_wait_gets_more_than_was_used() -> None:
    budgets = tuner()
    for _ in range(400):
        budgets.observe({"a": UseOfShare(used=90_000, waits=1), "b": UseOfShare(used=100_000)})
        budgets.shift()
    assert budgets.budgets == {"a": 400_000, "b": 110_000}
    assert budgets.score == 0


@given(st.lists(st.tuples(USES, USES), max_size=300))
def test_budgets_stay_within_bounds_and_move_slowly(seen: list[tuple[UseOfShare, UseOfShare]]) -> None:
    budgets = tuner()
    for first, second in seen:
        before = dict(budgets.budgets)
        budgets.observe({"a": first, "b": second})
        budgets.shift()
        assert all(20_000 <= budget <= 400_000 for budget in budgets.budgets.values())
        assert all(abs(budgets.budgets[name] - before[name]) <= 38_000 for name in before)
        assert 0 <= budgets.score <= 100
    assert len(budgets.history) <= HISTORY
