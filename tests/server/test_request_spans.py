"""Where the time of a client's requests went: stages of both ends, which add up, and are the server's own."""

import logging
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch

from tests.server.running import RunningServer, running, server_log
from tmmu.client import client_opening
from tmmu.client.request_trace import RequestSpan, RequestTrace
from tmmu.errors import DeadlineExceeded, InvalidConfig, InvalidRequest
from tmmu.server.graphs.checked_graph import CheckedGraph
from tmmu.server.graphs.graph_bindings import BoundGraph, GraphBindings
from tmmu.server.settings import load_settings
from tmmu.wire.model_messages import ListModels


@pytest.fixture(scope="module")
def tensors(folder: Path) -> Iterator[RunningServer]:
    options = {"models": {"text": folder}, "listen": "127.0.0.1:0", "budget": "8MiB", "tensor_bytes": "1MiB"}
    with running(load_settings(options)) as server:
        yield server


def told_by(trace: RequestTrace, records: list[logging.LogRecord]) -> dict[str, Any]:
    """The log's entry of each request of a trace, by the span that is above the server's."""
    fields = [record.__dict__["tmmu_fields"] for record in records if record.getMessage() == "wire_request"]
    return {each["parent"]: each for each in fields if each["trace"] == trace.traceparent.split("-")[1]}


def require_sum(span: RequestSpan) -> None:
    assert span.is_over
    assert span.seconds == pytest.approx(sum(span.stages.values()), rel=1e-9)
    assert all(seconds >= 0 for seconds in span.stages.values())


def test_stages_are_those_of_both_ends(tensors: RunningServer) -> None:
    with server_log() as records:
        with tensors.remote() as remote, remote.trace() as trace:
            begin = monotonic()
            with remote.session("text") as session:
                session.prefill([1, 2, 3])
                list(session.generate([4], 3, stop=()))
            wall = monotonic() - begin
        names = [span.request for span in trace.requests]
        tensors.wait_for(lambda: len(told_by(trace, records)) == len(names))
    assert names[:3] == ["sessions.open", "sessions.read", "sessions.generate"]
    assert sum(span.seconds for span in trace.requests) <= wall
    for span in trace.requests:
        require_sum(span)
        assert {"serialize", "network", "execute"} <= set(span.stages)
    told = told_by(trace, records)
    for span in trace.requests:
        entry = told[span.traceparent.split("-")[2]]
        assert entry["request"] == span.request
        for stage in ("queue", "lookup", "execute"):
            assert span.stages.get(stage, 0.0) == pytest.approx(entry["stages"].get(stage, 0.0), abs=3e-6)


def test_planning_and_binding_a_graph_is_a_look_up(tensors: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    original, slow = GraphBindings.bound_graph, 0.05

    def bound_slowly(bindings: GraphBindings, checked: CheckedGraph) -> BoundGraph | None:
        sleep(slow)
        return original(bindings, checked)

    monkeypatch.setattr(GraphBindings, "bound_graph", bound_slowly)
    with tensors.remote() as remote, remote.open_device(), remote.trace() as trace:
        for _ in range(2):
            assert torch.arange(6.0, device="remote").mul(2).sum().item() == 30
    runs = [span for span in trace.requests if span.request == "graphs.run"]
    assert len(runs) == 2
    for span in runs:
        require_sum(span)
        assert {"capture", "build", "serialize", "network", "lookup", "execute", "result"} <= set(span.stages)
        assert span.stages["lookup"] >= slow
        assert span.stages["capture"] > 0
        assert span.stages["build"] > 0


def test_what_fails_has_its_code_and_no_stages_of_the_server(tensors: RunningServer) -> None:
    with tensors.remote() as remote, remote.trace() as trace, remote.session("text") as session:
        with pytest.raises(InvalidConfig):
            session.prefill([-1])
        with pytest.raises(DeadlineExceeded):
            remote.request(ListModels(), deadline=0.0)
    opened, failed, late, closed = trace.requests
    assert [span.code for span in trace.requests] == ["", "INVALID_CONFIG", "DEADLINE_EXCEEDED", ""]
    assert set(failed.stages) == {"serialize", "network"}
    for span in (opened, failed, late, closed):
        require_sum(span)


def test_what_a_run_fails_of_is_the_code_of_its_request(tensors: RunningServer) -> None:
    with tensors.remote() as remote, remote.open_device(), remote.trace() as trace:
        with pytest.raises(InvalidRequest):
            torch.arange(4.0, device="remote")[torch.tensor([9], device="remote")].tolist()
        assert torch.ones(3, device="remote").sum().item() == 3
    failed, after = (span for span in trace.requests if span.request == "graphs.run")
    assert (failed.code, after.code) == ("INVALID_REQUEST", "")
    require_sum(failed)


def test_a_look_at_what_is_here_is_no_part_of_an_earlier_request(tensors: RunningServer) -> None:
    with tensors.remote() as remote, remote.open_device():
        with remote.trace() as trace:
            values = torch.arange(6.0, device="remote")
            values.tolist()
        (before,) = (dict(span.stages) for span in trace.requests)
        values.tolist()
        repr(values)
        assert [dict(span.stages) for span in trace.requests] == [before]


def test_what_came_before_a_failed_request_is_told_to_it(tensors: RunningServer) -> None:
    with tensors.remote() as remote, remote.open_device() as device, remote.trace() as trace:
        device.dispatcher.recorder._link._deadline = 0.0
        with pytest.raises(DeadlineExceeded):
            torch.arange(6.0, device="remote").tolist()
        (failed,) = trace.requests
        require_sum(failed)
        assert failed.stages["capture"] > 0
        assert device.counts.stages._before.get("capture", 0.0) == 0.0


def test_the_span_of_a_dropped_stream_ends(tensors: RunningServer) -> None:
    with tensors.remote() as remote, remote.trace() as trace:
        stream = remote.connection.stream(ListModels())
        del stream
    (span,) = trace.requests
    require_sum(span)


def test_an_older_server_tells_nothing(tensors: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first version of the wire has no stages, and works as before."""
    monkeypatch.setattr(client_opening, "VERSIONS", (1,))
    with tensors.remote() as remote, remote.trace() as trace:
        assert remote.models()
    (span,) = trace.requests
    require_sum(span)
    assert set(span.stages) == {"serialize", "network"}
