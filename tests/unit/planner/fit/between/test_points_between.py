"""Points between neighbours of a curve: in order, a function of the curve alone, and cheaper than the next one."""

from itertools import pairwise

import pytest

from tests.unit.judge.rewrite.programs import convolutions
from tests.unit.planner.fit.random_steps import random_step
from tests.unit.planner.fit.test_fit_step import SETTINGS, curve_of
from tmmu.planner.fit.between import points_between as module
from tmmu.planner.fit.between.points_between import fine_points, points_between
from tmmu.planner.fit.curve import CurvePoint, StepCurve
from tmmu.planner.fit.fit_step import fit_step, fit_within
from tmmu.planner.fit.search import Search

DROPS_LESS, KEEPS_MORE = 8, 35
"""Random steps with a point between two that lies onward from the first, and that lies back from the second."""


def every_point(curve: StepCurve) -> list[CurvePoint]:
    return list(fine_points(curve, lambda _: False))


def gap_of(curve: StepCurve) -> tuple[CurvePoint, CurvePoint]:
    """The first two neighbours with a point between them."""
    return next(pair for pair in pairwise(curve.points) if points_between(curve, *pair))


@pytest.mark.parametrize("seed", range(40))
def test_points_rise_in_time_and_fall_in_bytes_and_begin_where_a_limit_does(seed: int) -> None:
    curve = curve_of(random_step(seed))
    points = every_point(curve)
    assert set(curve.points) <= set(points)
    assert all(one.time < other.time and one.peak > other.peak for one, other in pairwise(points))
    for place, point in enumerate(points):
        assert list(fine_points(curve, lambda each, most=point.time: each.time <= most)) == points[place:]
        by_bytes = list(fine_points(curve, lambda each, limit=point.peak: each.peak > limit))
        assert by_bytes == points[max(0, place - 1) :]


@pytest.mark.parametrize(("seed", "side"), [(DROPS_LESS, "_backward"), (KEEPS_MORE, "_onward")])
def test_either_side_finds_what_the_other_does_not(seed: int, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``side`` is the one that finds nothing there."""
    curve = curve_of(random_step(seed))
    inside = points_between(curve, *gap_of(curve))
    monkeypatch.setattr(module, side, lambda *_: iter(()))
    assert points_between(curve, *gap_of(curve)) == inside


def test_limit_between_two_points_takes_less_time_than_the_next_one() -> None:
    curve = curve_of(convolutions("sgd"))
    low, high = gap_of(curve)
    point = points_between(curve, low, high)[0]
    fitted = fit_step(curve, point.peak, SETTINGS)
    assert fitted is not None
    assert fitted.stack_bytes <= point.peak
    assert fitted.time <= point.time < high.time
    within = fit_within(curve, point.time, SETTINGS)
    assert within is not None
    assert within.live <= point.peak < low.peak


def test_points_are_states_of_their_frames() -> None:
    curve = curve_of(convolutions("sgd"))
    for point in set(every_point(curve)) - set(curve.points):
        search = Search(table=curve.frames[point.frame].table)
        assert search.schedule(module.state_of(point.point))
        assert search.point(module.state_of(point.point)) == point.point


def test_nothing_is_between_points_that_are_close(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = curve_of(convolutions("sgd"))
    monkeypatch.setattr(module, "NARROW", 1)
    assert every_point(curve) == list(curve.points)


def test_points_are_found_between_points_that_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = curve_of(convolutions("sgd"))
    found = []
    for depth in range(3):
        monkeypatch.setattr(module, "DEPTH", depth)
        found.append(set(every_point(curve)))
    assert found[0] == set(curve.points)
    assert found[0] < found[1] < found[2]


def test_what_the_first_point_keeps_and_the_second_one_drops_is_not_kept_again() -> None:
    """It would lead back to the first point."""
    curve, backs = curve_of(convolutions("sgd")), 0
    for low, high in pairwise(curve.points):
        table, before = curve.frames[high.frame].table, curve.frames[low.frame]
        kept = set(before.table.gap[(module.state_of(low.point) == 0) & before.table.droppable].tolist())
        dropped = set(table.gap[module.state_of(high.point) == 1].tolist())
        for point in module._backward(curve, low, high) if before.form is curve.frames[high.frame].form else ():
            assert kept & dropped <= set(table.gap[module.state_of(point.point) == 1].tolist())
            backs += 1
    assert backs


def test_what_takes_the_most_time_for_its_bytes_is_kept_again_first() -> None:
    curve, compared = curve_of(convolutions("sgd")), 0
    for low, high in pairwise(curve.points):
        cells = curve.frames[high.frame].table.cells
        queue = module._dearest_first(curve, low, high)
        prices = [time / int(cells.size[cells.touch_of[gap]]) for gap, time in queue]
        assert prices == sorted(prices, reverse=True)
        compared += len(set(prices)) > 1
    assert compared


def test_so_many_schedules_are_made_of_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = curve_of(convolutions("sgd"))
    monkeypatch.setattr(module, "MOST_TRIES", 1)
    low, high = gap_of(curve)
    assert len(points_between(curve, low, high)) <= 2
