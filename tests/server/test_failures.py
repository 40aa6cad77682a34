"""What fails on our side: the client has an object, the log a traceback, and the others go on."""

from typing import Any

import pytest

from tests.server.running import RunningServer
from tests.server.test_completions import body_of, events_of
from tests.server.test_limits import HEADERS, TRACE


def fail(*_: object, **__: object) -> Any:
    raise RuntimeError("a fault of ours")


def test_request_that_fails_is_an_object_and_a_traceback(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.service.models, "admit", fail)
    with server.log_of(TRACE) as records:
        answer = server.post("completions", body_of(), headers=HEADERS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "INTERNAL")
    assert "fault" not in answer.text
    assert [record.getMessage() for record in records] == ["request_failed", "request"]
    assert records[0].exc_info is not None
    assert records[1].__dict__["tmmu_fields"]["status"] == 500


@pytest.mark.parametrize("is_stream", [True, False])
def test_text_that_fails_ends_with_its_error(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    engine, calls = server.engine("ids"), [0]
    original = engine.enqueue

    def enqueue(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return original(*arguments, **options) if calls[0] < 4 else fail()

    monkeypatch.setattr(engine, "enqueue", enqueue)
    answer = server.post("completions", body_of(stream=is_stream))
    if is_stream:
        *texts, end = events_of(answer.text)
        assert (answer.status_code, end["error"]["code"]) == (200, "INTERNAL")
        assert [text["choices"][0]["finish_reason"] for text in texts] == [None, None]
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "INTERNAL")
    server.wait_for(lambda: server.service.models.texts == 0 and server.data_used("ids") == 0)
    monkeypatch.undo()
    assert server.post("completions", body_of()).status_code == 200
