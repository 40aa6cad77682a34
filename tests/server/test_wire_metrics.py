"""Every metric of the wire is moved by what it counts; requests over the wire have spans in their client's trace."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.server.running import RunningServer, running, server_log
from tests.server.test_metrics import samples
from tmmu.client import client_connection
from tmmu.client.request_trace import RequestSpan
from tmmu.errors import SessionUnknown
from tmmu.server.settings import load_settings
from tmmu.wire.frames import PREAMBLE, FrameKind
from tmmu.wire.session_messages import AttachSession, GenerateTokens, OpenSession
from tmmu.wire.stages import SERVER_STAGES

TRACE, PARENT = "7" * 32, "8" * 16


@pytest.fixture(scope="module")
def tensors(folder: Path) -> Iterator[RunningServer]:
    options = {"models": {"text": folder}, "listen": "127.0.0.1:0", "budget": "8MiB", "tensor_bytes": "1MiB"}
    with running(load_settings(options)) as server:
        yield server


def moved_since(server: RunningServer, before: dict[str, float]) -> dict[str, float]:
    after = samples(server)
    return {name: after[name] - before.get(name, 0.0) for name in after if after[name] != before.get(name, 0.0)}


def test_every_metric_of_the_wire_moves(tensors: RunningServer) -> None:
    before = samples(tensors)
    with tensors.remote() as remote, remote.session("text", keep=256) as session:
        session.prefill([1, 2, 3])
        session.kept["a"] = torch.ones(3)
        with pytest.raises(SessionUnknown):
            remote.request(AttachSession(session="0" * 32))
        (served,) = tensors.service.door.connections
        pongs = [FrameKind.PONG, FrameKind.PONG]
        served._loop.call_soon_threadsafe(lambda: [served.writer.send(kind, 0, [bytes(8)]) for kind in pongs])
        tensors.wait_for(lambda: "tmmu_wire_joined_frames_total" in moved_since(tensors, before))
        now = moved_since(tensors, before)
        references = {name: value for name, value in now.items() if name.startswith("tmmu_remote_references")}
        assert references == {
            'tmmu_remote_references{kind="session"}': 1,
            'tmmu_remote_references{kind="value"}': 1,
        }
        assert now["tmmu_wire_connections"] == 1
    tensors.wait_for(lambda: not tensors.service.door.connections)
    ended = 'tmmu_wire_stage_seconds_count{stage="execute"}'  # by the threads that have answered, behind the answers
    tensors.wait_for(lambda: (now := moved_since(tensors, before))[ended] == now["tmmu_wire_requests_total"])
    moved = moved_since(tensors, before)
    assert moved["tmmu_wire_connections_opened_total"] == 1
    assert not [name for name in moved if name.startswith(("tmmu_remote_references", "tmmu_wire_connections{"))]
    assert moved["tmmu_wire_requests_total"] >= 4
    assert moved['tmmu_wire_refusals_total{code="SESSION_UNKNOWN"}'] == 1
    requests = moved["tmmu_wire_requests_total"]
    for direction in ("in", "out"):
        frames = moved[f'tmmu_wire_frames_total{{direction="{direction}"}}']
        assert frames >= requests
        assert moved[f'tmmu_wire_bytes_total{{direction="{direction}"}}'] > 12 * frames
    assert 0 < moved["tmmu_wire_writes_total"] <= moved['tmmu_wire_frames_total{direction="out"}'] * 2


def test_graphs_and_uploads_are_counted_beyond_their_connection(tensors: RunningServer) -> None:
    before = samples(tensors)
    with tensors.remote() as remote, remote.open_device():
        for number in range(3):
            assert (torch.full((6,), float(number)).to("remote") + 1).sum().item() == 6 * number + 6
        now = moved_since(tensors, before)
        assert now['tmmu_remote_references{kind="tensor"}'] >= 1
    tensors.wait_for(lambda: not tensors.service.door.connections)
    tensors.wait_for(lambda: 'tmmu_remote_references{kind="tensor"}' not in moved_since(tensors, before))
    moved = moved_since(tensors, before)
    assert moved['tmmu_graph_runs_total{way="calls"}'] >= 1
    assert moved['tmmu_graph_runs_total{way="plan"}'] >= 1
    assert (moved["tmmu_uploads_total"], moved["tmmu_upload_bytes_total"]) == (3, 72)


def test_a_connection_that_is_refused_is_counted_by_its_code(tensors: RunningServer) -> None:
    before = samples(tensors)
    assert 'tmmu_wire_refusals_total{code="KEY_REFUSED"}' in before, "there before the first one"
    address = tensors.service.address
    with socket.create_connection((address.host, address.port), 60) as client:
        client.sendall(PREAMBLE + bytes(12))
        while client.recv(1 << 12):
            pass
    assert moved_since(tensors, before)['tmmu_wire_refusals_total{code="WIRE_BROKEN"}'] == 1


def test_requests_over_the_wire_have_spans_in_the_trace_of_their_client(
    tensors: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = f"00-{TRACE}-{PARENT}-01"
    span = RequestSpan(request="", traceparent=trace)
    monkeypatch.setattr(client_connection, "begin_span", lambda header: span)
    with server_log() as log, tensors.remote() as remote:
        connection = remote.connection
        opened, _ = connection.request(OpenSession(model="text", tokens=16))
        header = GenerateTokens(session=opened.session, count=3, stop=())
        prompt = memoryview(torch.tensor([1, 2]).numpy()).cast("B")
        list(connection.stream(header, [prompt]))
        tensors.wait_for(
            lambda: any(row["tmmu_fields"].get("request") == "sessions.generate" for row in map(vars, log))
        )
    records = [{"event": record.getMessage(), **record.__dict__["tmmu_fields"]} for record in log]
    (request,) = [each for each in records if each.get("request") == "sessions.generate"]
    assert (request["trace"], request["parent"]) == (TRACE, PARENT)
    spans = [each for each in records if each["event"] == "span" and each["parent"] == request["span"]]
    assert {span["stage"]: span["seconds"] for span in spans} == request["stages"]
    assert {"network", "queue", "execute", "result"} <= set(request["stages"]) <= set(SERVER_STAGES)
    assert abs(sum(request["stages"].values()) - request["seconds"]) <= 0.02 * request["seconds"] + 5e-6
