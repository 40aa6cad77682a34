"""What a remote device takes is what its stages take."""

from itertools import count

import pytest
import torch

from tests.unit.client.device.conftest import Remote
from tmmu.client.device.device_counts import CLIENT_STAGES, StageSeconds
from tmmu.client.request_trace import RequestSpan
from tmmu.errors import InvalidRequest


def test_a_stage_has_no_seconds_of_those_in_it() -> None:
    times = iter([0.0, 1.0, 4.0, 9.0, 20.0, 30.0])
    stages = StageSeconds(lambda: next(times))
    with stages.within("capture"), stages.within("request"):  # 0 to 9, and 1 to 4
        pass
    with pytest.raises(ZeroDivisionError), stages.within("build"):  # 20 to 30, behind 9
        raise ZeroDivisionError
    assert stages.seconds == {"capture": 1.0 + 5.0, "request": 3.0, "build": 10.0, "result": 0.0}


def test_a_request_has_what_came_before_it_and_what_comes_of_it() -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 14.0, 22.0, 38.0, 70.0])
    stages, spans = StageSeconds(lambda: next(times)), [RequestSpan(request="x", traceparent="") for _ in range(2)]
    with stages.within("result"):  # 0
        with stages.within("build"):  # 1
            with stages.within("request"):  # 3 to 10
                pass
            stages.note_request(spans[0])
        with stages.within("request"):  # 14, and 22 to 38
            pass
        stages.note_request(spans[1])
    assert spans[0].stages == {"capture": 0.0, "build": 2.0 + 4.0, "result": 1.0}
    assert spans[1].stages == {"capture": 0.0, "build": 0.0, "result": 8.0 + 32.0}


def test_a_recorded_call_is_of_the_next_request() -> None:
    times = iter([0.0, 1.0, 5.0, 8.0, 10.0, 20.0])
    stages, spans = StageSeconds(lambda: next(times)), [RequestSpan(request="x", traceparent="") for _ in range(2)]
    stages.note_request(spans[0])
    with stages.within("capture"):  # 0 to 1
        pass
    with stages.within("build"):  # 5 to 8
        pass
    stages.note_request(spans[1])
    with stages.within("capture"):
        pass
    assert spans[0].seconds == 0.0
    assert spans[1].stages == {"capture": 1.0, "build": 3.0, "result": 0.0}


def test_stages_of_a_look_add_up_to_it(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on whenever it is read: so time outside of all stages would be missing."""
    value = torch.arange(10.0, device="remote").sum()
    ticks, counts = count(), remote.device.counts
    monkeypatch.setattr(counts.stages, "clock", lambda: float(next(ticks)))
    before, begin = counts.seconds, next(ticks)
    assert value.item() == 45.0
    end = next(ticks)
    spent = {stage: seconds - before[stage] for stage, seconds in counts.seconds.items()}
    assert sum(spent.values()) == end - begin - 2, "but for the tick before and the one behind"
    assert set(spent) == set(CLIENT_STAGES)
    assert all(seconds > 0 for seconds in spent.values())


def test_what_fails_leaves_its_stages(remote: Remote) -> None:
    with pytest.raises(InvalidRequest):
        torch.arange(4.0, device="remote")[torch.tensor([9], device="remote")].tolist()
    assert remote.device.counts.stages._stage is None
    assert remote.device.counts.seconds["request"] > 0
