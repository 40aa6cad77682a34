"""The largest size that fits: against a search one by one, and how few measurements that takes."""

import random
from collections.abc import Callable

import pytest

from tmmu.planner.sizes.largest import MOST, largest_size

LIMIT = 10_000


def peaks(dice: random.Random) -> Callable[[int], int | None]:
    """The most of a few polynomials, perhaps of a padded size, perhaps refused beyond one: as a model's needs are."""
    forms = [(dice.randrange(LIMIT), dice.randrange(40), dice.choice([0, 0, dice.randrange(3)])) for _ in range(3)]
    unit, last = dice.choice([1, 1, 8, 64]), dice.choice([MOST, dice.randrange(1, 500)])

    def needs(size: int) -> int | None:
        padded = -(-size // unit) * unit
        return max(a + b * padded + c * padded**2 for a, b, c in forms) if size <= last else None

    return needs


@pytest.mark.parametrize("attempts", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_largest_is_that_of_a_search_one_by_one(attempts: int) -> None:
    for seed in range(attempts):
        dice = random.Random(seed)
        needs, most = peaks(dice), dice.choice([1, 7, 1000])
        limit, sizes = dice.randrange(2 * LIMIT), list[int]()

        def measure(size: int, needs=needs, sizes=sizes) -> int | None:  # type: ignore[no-untyped-def]
            sizes.append(size)
            return needs(size)

        found = largest_size(measure, limit, guess=dice.randrange(1200), most=most)
        fits = [size for size in range(1, most + 1) if (need := needs(size)) is not None and need <= limit]
        assert found == max(fits, default=0), f"seed {seed}"
        assert len(sizes) == len(set(sizes)), f"seed {seed}: a size is measured twice"
        assert {found, found + 1} - {0, most + 1} <= set(sizes), f"seed {seed}: the answer or the next was not measured"
        assert len(sizes) <= 4 * 11, f"seed {seed}"


@pytest.mark.parametrize(("slope", "base"), [(1, 0), (977, 10**9), (10**9, 5)])
def test_what_grows_in_proportion_takes_five_measurements(slope: int, base: int) -> None:
    sizes = []
    found = largest_size(lambda size: sizes.append(size) or base + slope * size, 10**12, guess=3)  # type: ignore[func-returns-value]
    assert found == min((10**12 - base) // slope, MOST)
    assert len(sizes) <= 5


def test_size_that_costs_nothing_ends_at_the_most() -> None:
    sizes = []
    assert largest_size(lambda size: sizes.append(size) or 7, 7, guess=3) == MOST  # type: ignore[func-returns-value]
    assert len(sizes) <= 3


def test_nothing_fits() -> None:
    assert largest_size(lambda size: 10 * size, 9, guess=100) == 0
    assert largest_size(lambda _: None, 9, guess=100) == 0
