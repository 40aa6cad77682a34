"""The gauge in virtual time: levels and their thresholds, slack, history, recovery, and what is done."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tmmu.server.pressure.gauge import ACTIONS, HISTORY, LEVELS, THRESHOLDS_PPM, PressureGauge


def levels(*used: int, waiting: int = 0) -> list[str]:
    gauge = PressureGauge()
    for at, each in enumerate(used):
        gauge.note(at, each, 100, waiting=waiting)
    return [event.level for event in gauge.history]


def test_levels_are_reached_at_their_thresholds() -> None:
    gauge, seen = PressureGauge(), []
    for used in (79, 80, 94, 95, 99, 100):
        gauge.note(0, used, 100)
        seen.append(gauge.level)
    assert seen == ["normal", "warning", "warning", "critical", "critical", "full"]
    assert levels(100) == ["full"]
    assert levels(0, waiting=1) == ["full"]


def test_levels_are_left_a_little_lower() -> None:
    assert levels(80, 79, 78, 80, 79, 77) == ["warning", "normal"]
    assert levels(95, 94, 93, 92, 95) == ["critical", "warning", "critical"]


def test_recovery_is_from_normal_to_normal() -> None:
    gauge = PressureGauge()
    for at, used in [(10.0, 85), (12.0, 100), (15.0, 90), (19.5, 10), (30.0, 96), (31.0, 0)]:
        gauge.note(at, used, 100)
    assert (gauge.recoveries, gauge.recovery_seconds) == (2, 10.5)
    assert [event.recovered for event in gauge.history] == [None, None, None, 9.5, None, 1.0]
    assert gauge.events == {"warning": 2, "critical": 2, "full": 1}


def test_more_is_done_at_each_level() -> None:
    gauge = PressureGauge()
    assert not gauge.does("reclaim")
    done = [set(ACTIONS[level]) for level in LEVELS]
    assert all(low < high for low, high in pairwise(done))
    gauge.note(0, 95, 100)
    assert gauge.does("refuse batch")
    assert not gauge.does("refuse interactive")


@given(st.lists(st.tuples(st.integers(0, 130), st.integers(0, 1)), max_size=400))
def test_level_is_that_of_the_bytes_or_one_that_was_hardly_left(notes: list[tuple[int, int]]) -> None:
    gauge = PressureGauge()
    for at, (used, waiting) in enumerate(notes):
        gauge.note(at, used, 100, waiting=waiting)
        index = LEVELS.index(gauge.level)
        if waiting:
            assert gauge.level == "full"
            continue
        assert used * 10_000 >= THRESHOLDS_PPM[index] - 20_000 * (index > 0)
        assert all(used * 10_000 < threshold for threshold in THRESHOLDS_PPM[index + 1 :])
    assert len(gauge.history) <= HISTORY
    if gauge.level == "normal":
        assert (
            gauge.recoveries == sum(event.level == "normal" for event in gauge.history) or len(gauge.history) == HISTORY
        )


def test_segment_of_no_bytes_is_full_where_somebody_waits_alone() -> None:
    gauge = PressureGauge()
    assert gauge.note(0, 0, 0) is None
    assert gauge.note(0, 0, 0, waiting=2) is not None
