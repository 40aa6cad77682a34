"""Loops: a body that was seen is planned once, values are asked for one by one, and a long loop stays bounded."""

from typing import Any

import pytest
import torch

from tests.unit.client.device.conftest import Remote
from tmmu.client.device import dispatch, graph_link, remote_recorder


def body(x: torch.Tensor) -> torch.Tensor:
    return (x * 1.01).tanh() + 0.1


def test_a_loop_of_equal_bodies_plans_once_and_asks_once_a_value(remote: Remote) -> None:
    x = torch.randn(50)
    y = x.to("remote")
    before = remote.requests
    for _ in range(100):
        x, y = body(x), body(y)
        assert y.sum().item() == x.sum().item()
    assert remote.requests == before + 100
    assert remote.service.plans.count == 1
    assert remote.device.counts.planned >= 98
    assert torch.equal(y.cpu(), x)


def test_a_loop_that_values_steer_runs_as_it_does_here(remote: Remote) -> None:
    def run(x: torch.Tensor) -> tuple[int, torch.Tensor]:
        rounds = 0
        while x.norm() < 40 and rounds < 60:
            x = x * 1.1 + torch.sin(x)
            rounds += 1
            if x.sum() > 5:
                x = x - 0.1
        return rounds, x

    x = torch.randn(20)
    rounds, expected = run(x)
    before = remote.requests
    remote_rounds, result = run(x.to("remote"))
    assert (remote_rounds, rounds > 3) == (rounds, True)
    counts = remote.device.counts
    assert remote.requests - before == counts.looks - counts.cached
    assert 2 * rounds <= counts.looks <= 2 * rounds + 2
    assert torch.equal(result.cpu(), expected)


def test_looking_again_at_what_nobody_wrote_asks_nobody(remote: Remote) -> None:
    x = torch.zeros(4, device="remote")
    for _ in range(20):
        assert not (x > 0).any().item()
    assert remote.requests == 2
    assert remote.device.counts.cached == 19
    x[1] = 3
    assert (x > 0).any().item()
    assert remote.requests == 3


def count_pending(remote: Remote, turns: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    lengths: list[int] = []
    take = remote_recorder.RemoteRecorder._take

    def noting(self: remote_recorder.RemoteRecorder):
        lengths.append(len(self._recording.calls))
        return take(self)

    monkeypatch.setattr(remote_recorder.RemoteRecorder, "_take", noting)
    x = torch.zeros(8, device="remote")
    for _ in range(turns):
        x = x + 1
    assert x.tolist() == [turns] * 8
    return lengths


def test_a_recording_runs_before_it_is_too_long(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_CALLS", 100)
    lengths = count_pending(remote, 450, monkeypatch)
    assert (max(lengths), len(lengths)) == (100, 5)
    assert len(remote.session.contents) <= 2


@pytest.mark.slow
def test_a_loop_of_a_hundred_thousand_turns_stays_bounded(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = count_pending(remote, 100_000, monkeypatch)
    assert max(lengths) == remote_recorder.MOST_CALLS
    assert remote.service.plans.count <= 2
    assert len(remote.session.contents) <= 2
    dispatcher = remote.device.dispatcher
    assert len(dispatcher._equal_calls) <= 4096
    assert len(dispatcher.recorder._live) < 10


def test_a_recording_runs_once_its_results_are_large(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_recorder, "MOST_BYTES", 4096)
    x = torch.zeros(256, device="remote")
    for _ in range(16):
        x = x + 1
    assert remote.requests > 3
    assert x[0].item() == 16


def test_what_is_deleted_is_freed_there(remote: Remote) -> None:
    x = torch.ones(1000, device="remote")
    y = x * 2
    remote.device.run()
    assert remote.bytes >= 8000
    del y
    x.sum().item()
    before = remote.bytes
    del x
    torch.ones(1, device="remote").item()
    assert remote.bytes <= before - 4000


def test_what_never_ran_is_not_told_to_be_freed(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    told = freed_by_request(monkeypatch)
    x = torch.ones(8, device="remote")
    assert not bool(x.sum() > 100)
    for _ in range(200):  # the same values again: each is known, none runs
        assert not bool(x.sum() > 100)
    x = x + 1
    assert x.sum().item() == 16
    remote.device.run()
    assert sum(map(len, told)) < 10
    assert len(remote.session.contents) <= 4


def test_more_contents_than_one_request_may_name_come_and_go(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_recorder, "MOST_CONTENTS", 10)
    monkeypatch.setattr(graph_link, "MOST_CONTENTS", 20)
    told = freed_by_request(monkeypatch)
    tensors = [torch.tensor(float(number), device="remote") for number in range(50)]
    assert len(remote.session.contents) == 40, "as many as one request takes go when they are there"
    assert [tensor.item() for tensor in tensors] == list(range(50))
    del tensors
    remote.device.run()
    torch.ones(1, device="remote").item()
    remote.device.dispatcher.recorder.free()
    assert max(map(len, told)) == 10
    assert len(remote.session.contents) <= 1


def freed_by_request(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    told: list[tuple[int, ...]] = []
    run = graph_link.GraphLink.run

    def noting(self: graph_link.GraphLink, *arguments: Any, **options: Any) -> Any:
        told.append(tuple(options["freed"]))
        return run(self, *arguments, **options)

    monkeypatch.setattr(graph_link.GraphLink, "run", noting)
    return told
