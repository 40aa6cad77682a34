"""Schedules of pipelines by name: the stages of each rank, and which layers a stage has."""

import pytest

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.ranks.schedules import SCHEDULES, layers_of_stage, parse_schedule


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("1f1b", [(0,), (1,), (2,)]),
        ("interleaved-1f1b", [(0, 3), (1, 4), (2, 5)]),
        ("looped-bfs:3", [(0, 3, 6), (1, 4, 7), (2, 5, 8)]),
        ("dualpipev", [(0, 5), (1, 4), (2, 3)]),
        ("zbv-zero-bubble:2", [(0, 5), (1, 4), (2, 3)]),
    ],
)
def test_each_rank_has_the_stages_that_its_schedule_runs(text: str, stages: list[tuple[int, ...]]) -> None:
    assert [parse_schedule(text).stages_of(rank, 3) for rank in range(3)] == stages


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_a_class_of_torch_and_reads_as_it_is_written(name: str) -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    schedule = parse_schedule(name)
    assert hasattr(pipelining, schedule.torch_name)
    assert str(schedule) == name
    assert parse_schedule(f"{name}:{schedule.stages}") == schedule


def test_a_number_of_stages_that_is_no_usual_one_is_written() -> None:
    assert str(parse_schedule("interleaved-1f1b:4")) == "interleaved-1f1b:4"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2f2b", "--schedule '2f2b': no such schedule"),
        ("gpipe:", "--schedule 'gpipe:': '' is no number of stages"),
        ("gpipe:2", "--schedule gpipe:2: a rank has one stage in it"),
        ("dualpipev:4", "--schedule dualpipev:4: a rank has two stages in it"),
        ("looped-bfs:0", "--schedule 'looped-bfs:0': '0' is no number of stages"),
        ("looped-bfs:" + "9" * 5000, "--schedule 'looped-bfs:9999"),
        ("looped-bfs:1025", "--schedule 'looped-bfs:1025'"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_schedule(text)
    assert caught.value.what.startswith(said)


@pytest.mark.parametrize(
    ("layers", "stages", "counts"), [(32, 3, [11, 11, 10]), (80, 8, [10] * 8), (5, 4, [2, 1, 1, 1]), (4, 4, [1] * 4)]
)
def test_stages_have_all_layers_in_order_and_the_first_ones_more(layers: int, stages: int, counts: list[int]) -> None:
    ranges = [layers_of_stage(stage, stages, layers) for stage in range(stages)]
    assert [len(own) for own in ranges] == counts
    assert [layer for own in ranges for layer in own] == [*range(layers)]
