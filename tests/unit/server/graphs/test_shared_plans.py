"""Plans of recorded graphs: who waits for them, who keeps them, and what they count for."""

import gc
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from tests.unit.server.graphs.recordings import (
    ADD,
    RELU,
    Peer,
    floats,
    plus,
    relu_graph,
    sum_graph,
    sum_inputs,
    sum_of_two,
    try_lock,
    window,
)
from tmmu.errors import (
    UnsupportedOp,
)
from tmmu.server.graphs import graph_plans, run_calls
from tmmu.server.graphs.call_forms import OperatorCall
from tmmu.server.graphs.checked_graph import CheckedGraph
from tmmu.server.graphs.graph_limits import GraphLimits
from tmmu.server.graphs.graph_service import GraphService
from tmmu.server.graphs.planned_graph import PlannedRecording
from tmmu.server.graphs.run_calls import call_operator
from tmmu.wire.graph import (
    GraphCall,
    OperatorForm,
    RecordedGraph,
    TensorSlot,
    form_hash,
)


def test_nobody_waits_for_the_plan_of_another_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    service, begun, gate = GraphService(), Event(), Event()
    slow, quick = Peer(service, client="a"), Peer(service, client="b")
    for peer in (slow, quick):
        sum_of_two(peer)
    original = graph_plans.plan_recording

    def plan(checked: CheckedGraph, cache: None) -> PlannedRecording:
        begun.set()
        assert gate.wait(60)
        return original(checked, cache)

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(graph_plans, "plan_recording", plan)
        runs = [pool.submit(sum_of_two, slow)]
        assert begun.wait(60)
        patch.setattr(graph_plans, "plan_recording", original)
        runs.append(pool.submit(sum_of_two, Peer(service, client="c")))  # the first run of it there
        other = relu_graph()
        content = quick.upload(floats(-1, 2, -3, 4))
        for _ in range(2):
            answer, (result,) = quick.run(other, [content], RELU)
        assert answer.planned
        assert quick.fetch(result).tolist() == [0, 2, 0, 4]
        assert not runs[0].done()
        gate.set()
        assert [run.result(60) for run in runs] == [[2, 3, 4, 0]] * 2
    assert service.plans.count == 2


def test_draws_of_others_wait_for_a_call_and_not_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = OperatorForm("aten.bernoulli.default", (TensorSlot(0),), ())
    graph = RecordedGraph(
        inputs=(16,),
        results=(16, 16),
        windows=(window(0), window(1), window(2)),
        forms=(form_hash(draw), form_hash(RELU)),
        calls=(GraphCall(0, (0,), (1,)), GraphCall(1, (1,), (2,))),
        outputs=(2,),
    )
    peer, is_free = Peer(), list[bool]()

    def note(call: OperatorCall, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        with ThreadPoolExecutor(1) as pool:
            is_free.append(pool.submit(try_lock).result())
        return call_operator(call, tensors)

    monkeypatch.setattr(run_calls, "call_operator", note)
    answer, _ = peer.run(graph, [peer.upload(floats(1, 0, 1, 0))], draw, RELU)
    assert answer.failure is None
    assert is_free == [False, True]


def test_a_graph_that_runs_long_is_not_bound() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.4
        return now[0]

    slow = Peer(GraphService(GraphLimits(trial=0.1, seconds=1e6, window=1e9), clock=clock))
    quick = Peer(GraphService(GraphLimits(trial=1e6, seconds=1e6, window=1e9), clock=clock))
    for peer, is_bound in ((slow, False), (quick, True)):
        for _ in range(3):
            assert sum_of_two(peer) == [2, 3, 4, 0]
        session = peer.service.session_of(peer.connection.peer)
        assert session is not None
        assert session.counts.planned == 2 * is_bound


def test_plans_of_a_stranger_are_bounded_and_push_out_none_of_others() -> None:
    service = GraphService()
    resident, stranger = Peer(service, client="a"), Peer(service, client="b")
    for _ in range(2):
        sum_of_two(resident)
    one = service.plans.memory
    service.plans._limits = GraphLimits(planned=6 * one)
    content = stranger.upload(floats(1, 2, 3, 4))
    for number in range(8):
        graph, form = plus(number)
        for _ in range(2):
            answer, _ = stranger.run(graph, [content], form)
        assert answer.planned
        assert service.plans.memory <= 4 * one, "the resident's, and half of all"
    planned = service.plans.count
    newcomer = Peer(service, client="a")
    for _ in range(3):
        assert sum_of_two(newcomer) == [2, 3, 4, 0]
    assert service.plans.count == planned, "its plan is there still"


def test_a_plan_larger_than_a_share_is_used_and_not_kept() -> None:
    peer = Peer(planned=1)
    for _ in range(3):
        assert sum_of_two(peer) == [2, 3, 4, 0]
    session = peer.service.session_of(peer.connection.peer)
    assert session is not None
    assert (session.counts.planned, peer.service.plans.memory) == (2, 0)


def test_a_program_that_is_bound_counts_as_its_clients_memory() -> None:
    peer = Peer()
    inputs = sum_inputs(peer)
    peer.run(sum_graph(), inputs, ADD, RELU)
    before = peer.service.usage_of("anybody").bytes
    peer.run(sum_graph(), inputs, ADD, RELU)
    taken = peer.service.usage_of("anybody").bytes - before
    assert taken > peer.service.plans.memory > 1000
    poor = Peer(bytes=peer.service.plans.memory)
    for _ in range(3):
        assert sum_of_two(poor) == [2, 3, 4, 0]
    session = poor.service.session_of(poor.connection.peer)
    assert session is not None
    assert session.counts.planned == 0
    assert "QUOTA_EXCEEDED" in session.bindings.why_unplanned()[0]


def test_a_client_has_one_graph_planned_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    service, under_way, most = GraphService(), list[bytes](), list[int]()
    original = graph_plans.plan_recording

    def plan(checked: CheckedGraph, cache: None) -> PlannedRecording:
        under_way.append(checked.hash)
        most.append(len(under_way))
        try:
            return original(checked, cache)
        finally:
            under_way.remove(checked.hash)

    monkeypatch.setattr(graph_plans, "plan_recording", plan)

    def run(number: int) -> bool:
        peer, (graph, form) = Peer(service, client="a"), plus(number)
        content = peer.upload(floats(1, 2, 3, 4))
        return [peer.run(graph, [content], form)[0].planned for _ in range(2)][-1]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(4)))
    assert most == [1] * 4


def test_a_graph_that_has_no_plan_keeps_nothing_of_its_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = list[weakref.ref[ThreadPoolExecutor]]()

    def plan(checked: CheckedGraph, cache: None) -> PlannedRecording:
        capture = ThreadPoolExecutor(1)
        captured.append(weakref.ref(capture))
        raise UnsupportedOp("no plan of it", fix="run it call by call")

    monkeypatch.setattr(graph_plans, "plan_recording", plan)
    service = GraphService()
    for client in "abc":
        peer = Peer(service, client=client)
        for _ in range(3):
            assert sum_of_two(peer) == [2, 3, 4, 0]
    assert service.plans.count == 1
    gc.collect()
    assert [capture() for capture in captured] == [None]
