"""Stages add up to the wall time, whatever happens between two marks."""

from hypothesis import given
from hypothesis import strategies as st

from tmmu.wire.stages import SERVER_STAGES, StageTimeline, decode_stages, encode_stages

TICKS = st.integers(0, 1000)


class Time:
    now = 7.0

    def __call__(self) -> float:
        return self.now


def test_each_stage_has_what_lies_between_two_marks() -> None:
    time = Time()
    timeline = StageTimeline(time)
    for stage, seconds in [("serialize", 2), ("queue", 3), ("execute", 5), ("queue", 7), ("execute", 11)]:
        time.now += seconds
        timeline.enter(stage)  # type: ignore[arg-type]
    time.now += 13
    assert timeline.end() == 41
    assert timeline.seconds == {"network": 2, "serialize": 3, "queue": 5 + 11, "execute": 7 + 13}
    assert list(timeline.seconds) == ["network", "serialize", "queue", "execute"]


def test_part_of_a_stage_is_moved_and_no_more_than_there_is() -> None:
    time = Time()
    timeline = StageTimeline(time)
    time.now += 4
    timeline.enter("execute")
    time.now += 6
    timeline.move("execute", "lookup", 5)
    timeline.move("execute", "queue", 50)
    timeline.move("result", "lookup", 3)
    timeline.move("execute", "queue", -3)
    assert timeline.stage == "execute"
    assert {stage: taken for stage, taken in timeline.seconds.items() if taken} == {
        "network": 4,
        "lookup": 5,
        "queue": 1,
    }
    assert timeline.end() == 10


def test_branch_goes_on_by_itself_and_is_taken_over() -> None:
    time = Time()
    timeline = StageTimeline(time)
    time.now += 1
    timeline.enter("queue")
    time.now += 2
    branch = timeline.branch()
    time.now += 3
    branch.enter("execute")
    time.now += 4
    assert (timeline.stage, branch.stage) == ("queue", "execute")
    timeline.take_over(branch)
    assert timeline.end() == 10
    assert timeline.seconds == {"network": 1, "queue": 5, "execute": 4}
    assert branch.seconds == {"network": 1, "queue": 5}


ACTS = st.one_of(
    st.tuples(st.just("enter"), st.sampled_from(SERVER_STAGES), TICKS),
    st.tuples(st.just("move"), st.tuples(st.sampled_from(SERVER_STAGES), st.sampled_from(SERVER_STAGES)), TICKS),
    st.tuples(st.just("branch"), st.none(), TICKS),
)


@given(st.lists(st.tuples(TICKS, ACTS), max_size=60))
def test_stages_add_up_to_the_wall_time(acts: list[tuple[int, tuple[str, object, int]]]) -> None:
    time = Time()
    begin, timeline = time.now, StageTimeline(time)
    for ticks, (act, stages, amount) in acts:
        time.now += ticks
        if act == "enter":
            timeline.enter(stages)  # type: ignore[arg-type]
        elif act == "move":
            timeline.move(*stages, amount)  # type: ignore[misc]
        else:
            timeline = timeline.branch()
    assert timeline.end() == time.now - begin == sum(timeline.seconds.values())
    assert all(taken >= 0 for taken in timeline.seconds.values())


def test_stages_travel_as_microseconds() -> None:
    times = encode_stages({"execute": 0.25, "queue": 1e-7})
    assert (times, decode_stages(times)["execute"]) == ([0, 0, 0, 0, 250_000, 0], 0.25)
    assert decode_stages(()) == {}
