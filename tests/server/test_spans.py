"""Stages of requests over HTTP: they add up to the time that the log says, and a step that is planned is a look-up."""

from typing import Any

import pytest

from tests.server.running import RunningServer
from tmmu.wire.stages import SERVER_STAGES

TRACE = "5" * 32
HEADERS = {"traceparent": f"00-{TRACE}-{'6' * 16}-01"}
BODY: dict[str, Any] = {"model": "text", "prompt": "one", "max_tokens": 5, "seed": 1}


def fields_of(server: RunningServer, **changes: Any) -> list[dict[str, Any]]:
    with server.log_of(TRACE, has_spans=True) as records:
        server.post("completions", BODY | changes, headers=HEADERS)
    return [record.__dict__["tmmu_fields"] for record in records]


@pytest.mark.parametrize("changes", [{}, {"stream": True}, {"n": 3}, {"prompt": [[1], [2, 3]]}])
def test_stages_add_up_to_the_time_of_the_request(server: RunningServer, changes: dict[str, Any]) -> None:
    *spans, request = fields_of(server, **changes)
    stages = request["stages"]
    assert abs(sum(stages.values()) - request["seconds"]) <= 0.02 * request["seconds"]
    assert set(stages) <= set(SERVER_STAGES)
    assert {"network", "serialize", "queue", "execute", "result"} <= set(stages)
    assert {span["stage"]: span["seconds"] for span in spans} == stages
    assert {span["parent"] for span in spans} == {request["span"]}


def test_refused_and_failed_requests_have_stages_too(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "stages" not in fields_of(server, model="nothing")[-1]

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server.engine("text"), "open", fail)
    *_, request = fields_of(server)
    assert request["status"] == 500
    assert abs(sum(request["stages"].values()) - request["seconds"]) <= 0.02 * request["seconds"] + 5e-6


def test_planning_a_step_is_a_look_up(server: RunningServer) -> None:
    engine, planned = server.engine("ids"), 0
    for tokens in (20, 40, 80, 100, 150, 200):  # of which others here have some
        before = engine.bound_shapes, engine.lookup_seconds
        body = {"model": "ids", "prompt": [1] * tokens, "max_tokens": 1}
        lookup = fields_of(server, **body)[-1]["stages"].get("lookup", 0)
        assert lookup == pytest.approx(engine.lookup_seconds - before[1], abs=1e-5)
        assert (lookup > 0) == (engine.bound_shapes > before[0])
        planned += lookup > 0
    assert planned
