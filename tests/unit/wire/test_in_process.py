import pytest

from tests.unit.wire.sums import Add, Misbehave, Sums, Total
from tmmu.errors import DeadlineExceeded, InternalError, InvalidRequest, RequestTooLarge, SegmentFull, ServerGone
from tmmu.wire.in_process import InProcessConnection
from tmmu.wire.limits import WireLimits
from tmmu.wire.service_table import ServiceTable


def test_answers_parts_and_payloads_come_back_as_they_were_sent() -> None:
    connection = InProcessConnection(ServiceTable([Sums()]), client="key-1")
    data = bytearray(b"abc")
    header, payloads = connection.request(Add(numbers=(1, 2), returns=True), [memoryview(data)])
    assert header == Total(value=6, client="key-1")
    data[0] = 0
    assert [bytes(payload) for payload in payloads] == [b"abc"]
    parts = [answer.value for answer, _ in connection.stream(Add(numbers=(1, 2), streams=True))]
    assert parts == [1, 3, 3]


def test_refusals_and_defects_are_errors_at_the_client() -> None:
    connection = InProcessConnection(ServiceTable([Sums()]))
    with pytest.raises(SegmentFull, match="no room"):
        connection.request(Misbehave(way="refuse"))
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        connection.request(Misbehave(way="fail"))
    with pytest.raises(InternalError, match="answered by Misbehave"):
        connection.request(Misbehave(way="lie"))
    with pytest.raises(InvalidRequest, match="length <= 8"):
        connection.request(Add(numbers=(0,) * 9))


def test_a_deadline_cancels_the_call() -> None:
    sums = Sums()
    connection = InProcessConnection(ServiceTable([sums]))
    with pytest.raises(DeadlineExceeded):
        connection.request(Misbehave(way="sleep"), deadline=0.05)
    assert sums.cancelled.wait(60)


def test_a_closed_connection_ends_its_calls_and_tells_the_services() -> None:
    sums = Sums()
    connection = InProcessConnection(ServiceTable([sums]))
    stream = connection.stream(Misbehave(way="sleep"))
    connection.post(Misbehave(way="sleep"))
    assert sums.asleep.wait(60)
    connection.close()
    connection.close()
    assert sums.over.wait(60)
    assert sums.lost == [connection.peer.connection]
    with pytest.raises(ServerGone):
        next(stream)
    with pytest.raises(ServerGone):
        connection.request(Add())


def test_services_hear_of_the_end_behind_the_last_call() -> None:
    sums = Sums()
    connection = InProcessConnection(ServiceTable([sums]))
    connection.post(Misbehave(way="linger"))
    assert sums.asleep.wait(60)
    connection.close()
    assert sums.lost == []
    sums.may_end.set()
    assert sums.over.wait(60)
    assert sums.lost == [connection.peer.connection]


def test_limits_hold_at_the_client() -> None:
    limits = WireLimits(header_bytes=64, payloads=2, payload_bytes=100)
    connection = InProcessConnection(ServiceTable([Sums()]), limits=limits)
    for payloads in ([memoryview(bytes(101))], [memoryview(b"")] * 3):
        with pytest.raises(RequestTooLarge):
            connection.request(Add(), payloads)
    with pytest.raises(RequestTooLarge):
        connection.request(Add(numbers=(1 << 60,) * 8))


def test_two_services_of_one_tag_are_refused() -> None:
    with pytest.raises(InternalError, match="one tag"):
        ServiceTable([Sums(), Sums()])
