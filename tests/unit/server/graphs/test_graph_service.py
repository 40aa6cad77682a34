"""Sessions of recorded graphs: quotas, epochs, tenants, failures, and plans."""

import gc
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest
import torch
from blake3 import blake3

from tests.unit.server.graphs.recordings import ADD, FOUR, RELU, Peer, floats, sum_graph, sum_inputs, window
from tmmu.errors import (
    InvalidConfig,
    InvalidRequest,
    QuotaExceeded,
    ReferenceStale,
    UnsupportedOp,
    WireBroken,
)
from tmmu.passes.capture.replace import TRACE_LOCK
from tmmu.server.graphs import graph_plans, run_calls
from tmmu.server.graphs.call_forms import OperatorCall
from tmmu.server.graphs.checked_graph import CheckedGraph
from tmmu.server.graphs.graph_bindings import GraphCounts
from tmmu.server.graphs.graph_limits import ClientUsage, GraphLimits
from tmmu.server.graphs.graph_service import GraphService
from tmmu.server.graphs.graph_session import GraphSession
from tmmu.server.graphs.planned_graph import PlannedRecording
from tmmu.server.graphs.run_calls import call_operator
from tmmu.wire.graph import (
    ContentUpload,
    GraphCall,
    OpenDevice,
    OperatorForm,
    RecordedGraph,
    TensorSlot,
    form_hash,
    graph_hash,
)


def test_a_graph_is_sent_once_and_what_lacks_is_asked_for() -> None:
    peer = Peer()
    inputs, graph = sum_inputs(peer), sum_graph()
    answer, _ = peer.send(graph=graph_hash(graph), inputs=tuple(inputs), outputs=(10,))
    assert answer.lacks_graph
    answer, _ = peer.send(graph=graph_hash(graph), body=graph, forms=(ADD,), inputs=tuple(inputs), outputs=(10,))
    assert answer.lacks_forms == (form_hash(RELU),)
    answer, _ = peer.send(graph=graph_hash(graph), body=graph, forms=(RELU,), inputs=tuple(inputs), outputs=(10,))
    assert answer.failure is None
    assert not answer.lacks_graph
    answer, (data,) = peer.send(
        graph=graph_hash(graph), inputs=tuple(inputs), outputs=(11,), fetched=(window(11, *FOUR),), freed=(10,)
    )
    assert data == floats(2, 3, 4, 0)
    assert answer.planned
    with pytest.raises(ReferenceStale):
        raise_failure(peer, fetched=(window(10, *FOUR),))


def raise_failure(peer: Peer, **fields: object) -> None:
    answer, _ = peer.send(**fields)
    assert answer.failure is not None
    if answer.failure.code == ReferenceStale.code:
        raise ReferenceStale(answer.failure.what)
    raise AssertionError(answer.failure)


def test_forms_that_come_again_outlast_those_of_other_graphs() -> None:
    forms = tuple(OperatorForm("aten.add.Tensor", (TensorSlot(0), number), ()) for number in range(1, 4))
    chain = RecordedGraph(
        inputs=(16,),
        results=(16, 16, 16),
        windows=tuple(window(content) for content in range(4)),
        forms=tuple(form_hash(form) for form in reversed(forms)),
        calls=tuple(GraphCall(number, (number,), (number + 1,)) for number in range(3)),
        outputs=(3,),
    )
    peer = Peer(forms=4)
    content = peer.upload(floats(1, 2, 3, 4))
    others = tuple(OperatorForm("aten.mul.Tensor", (TensorSlot(0), number), ()) for number in range(2))
    peer.send(forms=(*forms, *others))
    answer, _ = peer.run(chain, [content])
    assert answer.lacks_forms == (form_hash(forms[0]),)
    answer, (result,) = peer.run(chain, [content], *reversed(forms))
    assert not answer.lacks_forms
    assert peer.fetch(result).tolist() == [7, 8, 9, 10]


def test_what_is_sent_has_the_hash_that_is_said() -> None:
    peer = Peer()
    with pytest.raises(WireBroken):
        peer.send(graph=bytes(32), body=sum_graph(), forms=(ADD, RELU), inputs=(0, 1), outputs=(2,))
    with pytest.raises(WireBroken):
        peer.send([b"abcd"], uploads=(ContentUpload(0, 4, bytes(32)),))
    with pytest.raises(InvalidRequest):
        peer.send([b"abcd"], uploads=(ContentUpload(0, 5, blake3(b"abcd").digest()),))
    with pytest.raises(InvalidRequest):
        peer.send([b"abcd"])
    assert peer.service.usage_of("anybody").bytes == 0


def test_a_number_that_is_taken_is_not_given_again() -> None:
    peer = Peer()
    number = peer.upload(b"abcd")
    with pytest.raises(InvalidRequest, match="taken"):
        peer.send([b"efgh"], uploads=(ContentUpload(number, 4, blake3(b"efgh").digest()),))
    assert peer.fetch(number, 0, (4,), (1,), "uint8").tolist() == list(b"abcd")


def test_another_tenant_neither_reads_nor_frees_nor_runs_on_contents() -> None:
    service = GraphService()
    owner, stranger = Peer(service, client="key-1"), Peer(service, client="key-2")
    inputs = sum_inputs(owner)
    for fields in ({"fetched": (window(inputs[0], *FOUR),)}, {"freed": tuple(inputs)}):
        with pytest.raises(ReferenceStale):
            stranger.send(**(fields | {"epoch": owner.epoch}))
    stranger.send(freed=tuple(inputs))
    with pytest.raises(ReferenceStale):
        raise_failure(stranger, fetched=(window(inputs[0], *FOUR),))
    answer, _ = stranger.run(sum_graph(), inputs, ADD, RELU)
    assert answer.failure is not None
    assert answer.failure.code == "REFERENCE_STALE"
    assert owner.fetch(inputs[0]).tolist() == [1, 2, 3, 4]


def test_one_client_cannot_take_the_room_of_another() -> None:
    service = GraphService(GraphLimits(bytes=1000, contents=8))
    greedy, modest = Peer(service, client="key-1"), Peer(service, client="key-2")
    second = Peer(service, client="key-1")
    greedy.upload(bytes(600))
    for peer in (greedy, second):
        with pytest.raises(QuotaExceeded):
            peer.upload(bytes(600))
    modest.upload(bytes(600))
    for _ in range(7):
        second.upload(b"")
    with pytest.raises(QuotaExceeded):
        second.upload(b"")
    greedy.connection.close()
    second.connection.close()
    assert (service.usage_of("key-1").bytes, service.usage_of("key-1").contents) == (0, 0)
    assert service.usage_of("key-2").bytes == 600


def test_a_graph_that_needs_more_than_there_is_does_not_run() -> None:
    peer = Peer(bytes=60)
    inputs = sum_inputs(peer)
    answer, _ = peer.run(sum_graph(), inputs, ADD, RELU)
    assert answer.failure is not None
    assert answer.failure.code == "QUOTA_EXCEEDED"
    assert peer.service.usage_of("anybody").bytes == 32


def test_what_a_kernel_allocates_beside_its_results_counts_in_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, total = Peer(), OperatorForm("aten.sum.default", (TensorSlot(0),), ())
    graph = RecordedGraph(
        inputs=(4,),
        results=(4,),
        windows=(window(0, 0, (1 << 8, 1 << 8), (0, 0), "float32"), window(1, 0, (), (), "float32")),
        forms=(form_hash(total),),
        calls=(GraphCall(0, (0,), (1,)),),
        outputs=(1,),
    )
    content, written_out = peer.upload(floats(2)), (1 << 16) * 4 - 4
    borrowed, borrow = list[int](), ClientUsage.borrow
    monkeypatch.setattr(ClientUsage, "borrow", lambda usage, size: (borrowed.append(size), borrow(usage, size))[1])
    for is_planned in (False, True, True):
        answer, _ = peer.run(graph, [content], total)
        assert (answer.failure, answer.planned) == (None, is_planned)
    trial = 4 + written_out
    assert [size for size in borrowed if size] == [written_out, trial, written_out, written_out]


def test_operators_and_time_are_counted_by_window() -> None:
    now = [0.0]
    usage = ClientUsage(GraphLimits(operators=10, seconds=5, window=60), lambda: now[0])
    usage.require_time(8)
    with pytest.raises(QuotaExceeded):
        usage.require_time(3)
    usage.spend(6)
    with pytest.raises(QuotaExceeded):
        usage.require_time(1)
    now[0] = 61.0
    usage.require_time(10)


def test_time_of_runs_side_by_side_is_that_of_their_client() -> None:
    now = [0.0]
    usage = ClientUsage(GraphLimits(seconds=5, window=60), lambda: now[0])
    with usage.spend_time() as first, usage.spend_time() as second:
        now[0] = 2.0
        first()
        second()
        now[0] = 3.0
        first()
        with pytest.raises(QuotaExceeded):
            second()
    with pytest.raises(QuotaExceeded):
        usage.require_time(1)


def test_time_counts_to_the_end_of_a_run_that_asks_for_none_or_fails() -> None:
    now = [0.0]
    usage = ClientUsage(GraphLimits(seconds=5, window=60), lambda: now[0])
    with usage.spend_time():
        now[0] = 4.0
    usage.require_time(1)
    with suppress(KeyError), usage.spend_time():
        now[0] = 6.0
        raise KeyError
    with pytest.raises(QuotaExceeded):
        usage.require_time(1)


def test_a_run_that_fails_keeps_nothing_and_says_why() -> None:
    gather = OperatorForm("aten.index_select.default", (TensorSlot(0), 0, TensorSlot(1)), ())
    graph = RecordedGraph(
        inputs=(16, 8),
        results=(4,),
        windows=(window(0), window(1, 0, (1,), (1,), "int64"), window(2, 0, (1,), (1,), "float32")),
        forms=(form_hash(gather),),
        calls=(GraphCall(0, (0, 1), (2,)),),
        outputs=(2,),
    )
    peer = Peer()
    numbers, good, bad = (
        peer.upload(data) for data in (floats(1, 2, 3, 4), bytes([3, *[0] * 7]), bytes([9, *[0] * 7]))
    )
    before = peer.service.usage_of("anybody").bytes
    for _ in range(3):
        answer, _ = peer.run(graph, [numbers, bad], gather)
        assert answer.failure is not None
        assert (answer.failure.code, "out of range" in answer.failure.what) == ("INVALID_REQUEST", True)
    assert peer.service.plans.count == 0  # a plan's run is not interrupted: one call by call has to end first
    answer, (output,) = peer.run(graph, [numbers, good], gather)
    assert peer.fetch(output, 0, (1,), (1,), "float32").tolist() == [4]
    session = peer.service.session_of(peer.connection.peer)
    assert session is not None
    assert peer.service.usage_of("anybody").bytes == before + 4 + session.bindings.bound_bytes
    peer.connection.close()
    assert peer.service.usage_of("anybody").bytes == 0


def test_a_device_that_is_opened_again_has_another_epoch() -> None:
    peer = Peer()
    peer.upload(b"abcd")
    opened, _ = peer.connection.request(OpenDevice(torch=str(torch.__version__), seed=0))
    with pytest.raises(ReferenceStale):
        peer.upload(b"abcd")
    assert opened.epoch != peer.epoch
    assert peer.service.usage_of("anybody").bytes == 0


def test_a_client_of_another_torch_is_refused() -> None:
    peer = Peer()
    with pytest.raises(InvalidConfig, match=r"torch 1\.0"):
        peer.connection.request(OpenDevice(torch="1.0", seed=0))


def test_the_oldest_bindings_and_graphs_go_first() -> None:
    peer = Peer(plans=2, graphs=4)
    inputs = sum_inputs(peer)
    session = peer.service.session_of(peer.connection.peer)
    assert session is not None
    for number in range(6):
        form = OperatorForm("aten.add.Scalar", (TensorSlot(0), number), ())
        graph = RecordedGraph(
            inputs=(16,),
            results=(16,),
            windows=(window(0), window(1)),
            forms=(form_hash(form),),
            calls=(GraphCall(0, (0,), (1,)),),
            outputs=(1,),
        )
        for _ in range(3):
            answer, (output,) = peer.run(graph, inputs[:1], form)
            assert peer.fetch(output).tolist() == [1 + number, 2 + number, 3 + number, 4 + number]
            peer.send(freed=(output,))
        assert answer.planned
        assert session.bindings.count <= 2
    answer, _ = peer.send(graph=graph_hash(sum_graph()), inputs=tuple(inputs), outputs=(999,))
    assert answer.lacks_graph


def test_forms_and_graphs_count_by_their_bytes_on_all_connections_of_a_client() -> None:
    service = GraphService(GraphLimits(recorded=2000))
    first, second = (Peer(service, client="a") for _ in range(2))
    stranger = Peer(service, client="b")
    for number in range(200):
        first.send(forms=(OperatorForm("aten.add.Tensor", (TensorSlot(0), number), ()),))
        assert 0 < service.usage_of("a").recorded <= 2000
    with pytest.raises(QuotaExceeded, match="more than are kept"):
        second.send(forms=(RELU, OperatorForm("aten.relu.default", (TensorSlot(0),) * 9, ())))
    stranger.send(forms=(RELU,))
    first.service.connection_lost(first.connection.peer)
    assert service.usage_of("a").recorded < 100
    second.send(forms=(RELU,))
    assert sum_of_two(second) == [2, 3, 4, 0]


def chain_of(forms: Sequence[OperatorForm], calls: int) -> RecordedGraph:
    """Calls one behind the other, which take turns with the forms."""
    return RecordedGraph(
        inputs=(16,),
        results=(16,) * calls,
        windows=tuple(window(content) for content in range(calls + 1)),
        forms=tuple(map(form_hash, forms)),
        calls=tuple(GraphCall(number % len(forms), (number,), (number + 1,)) for number in range(calls)),
        outputs=(calls,),
    )


def test_a_graph_that_runs_again_and_again_outlasts_newer_ones() -> None:
    peer = Peer(graphs=2)
    inputs, often = sum_inputs(peer), graph_hash(sum_graph())
    peer.run(sum_graph(), inputs, ADD, RELU)
    for number in range(4):
        form = OperatorForm("aten.add.Tensor", (TensorSlot(0), number), ())
        peer.run(chain_of([form], 1), inputs[:1], form)
        answer, _ = peer.send(graph=often, inputs=tuple(inputs), outputs=(1000 + number,))
        assert not answer.lacks_graph
        assert answer.failure is None


def test_graphs_make_room_for_the_forms_of_new_ones() -> None:
    peer = Peer(recorded=8000)
    content = peer.upload(floats(1, 2, 3, 4))
    old, *new = (OperatorForm("aten.add.Tensor", (TensorSlot(0), number), ()) for number in range(20))
    for calls in range(1, 90):
        peer.run(chain_of([old], calls), [content], old)
    assert peer.service.usage_of("anybody").recorded > 7000
    answer, (result,) = peer.run(chain_of(new, 19), [content], *new)
    assert not answer.lacks_forms
    assert peer.fetch(result).tolist() == [191, 192, 193, 194]


def sum_of_two(peer: Peer) -> list[float]:
    _, (result,) = peer.run(sum_graph(), sum_inputs(peer), ADD, RELU)
    return [float(number) for number in peer.fetch(result)]


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


def relu_graph() -> RecordedGraph:
    return RecordedGraph(
        inputs=(16,),
        results=(16,),
        windows=(window(0), window(1)),
        forms=(form_hash(RELU),),
        calls=(GraphCall(0, (0,), (1,)),),
        outputs=(1,),
    )


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


def try_lock() -> bool:
    is_free = TRACE_LOCK.acquire(blocking=False)
    if is_free:
        TRACE_LOCK.release()
    return is_free


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


def test_counts_do_not_fall_while_a_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, seen, close = Peer(), list[GraphCounts](), GraphSession.close
    sum_inputs(peer)
    before = peer.service.counts
    assert before.uploads == 2

    def look_and_close(session: GraphSession) -> None:
        seen.append(peer.service.counts)
        close(session)

    monkeypatch.setattr(GraphSession, "close", look_and_close)
    peer.connection.request(OpenDevice(torch=str(torch.__version__), seed=0))
    peer.connection.close()
    assert [*seen, peer.service.counts] == [before] * 3
    assert not peer.service._ending


def plus(number: int) -> tuple[RecordedGraph, OperatorForm]:
    form = OperatorForm("aten.add.Tensor", (TensorSlot(0), number), ())
    return chain_of([form], 1), form


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
