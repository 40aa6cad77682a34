"""Sessions of recorded graphs: quotas, epochs, tenants, failures, and plans."""

from contextlib import suppress

import pytest
import torch
from blake3 import blake3

from tests.unit.server.graphs.recordings import (
    ADD,
    FOUR,
    RELU,
    Peer,
    chain_of,
    floats,
    sum_graph,
    sum_inputs,
    sum_of_two,
    window,
)
from tmmu.errors import (
    InvalidConfig,
    InvalidRequest,
    QuotaExceeded,
    ReferenceStale,
    WireBroken,
)
from tmmu.server.graphs.graph_bindings import GraphCounts
from tmmu.server.graphs.graph_limits import ClientUsage, GraphLimits
from tmmu.server.graphs.graph_service import GraphService
from tmmu.server.graphs.graph_session import GraphSession
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
