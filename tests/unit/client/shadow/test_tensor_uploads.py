"""Uploads go on where the server's bytes end, whatever it says of them, and end where it takes none."""

from typing import Any

import pytest
from blake3 import blake3

from tmmu.client.shadow.tensor_uploads import TensorUploads, UploadCounts
from tmmu.errors import WireBroken
from tmmu.wire.interface import Message
from tmmu.wire.limits import WireLimits
from tmmu.wire.upload_messages import FindUploads, PutUploads, UploadsReceived

LIMITS = WireLimits(payload_bytes=10, payloads=2)
TENSORS = [bytes([number]) * size for number, size in enumerate((25, 3, 3, 3))]


class Server:
    """Takes parts; ``lose_at``: puts before which it has lost the first tensor; ``takes``: whether it takes any."""

    def __init__(self, lose_at: frozenset[int] = frozenset(), *, takes: bool = True) -> None:
        self.files: dict[bytes, bytes] = {}
        self.parts: list[list[tuple[int, int]]] = []
        self._lose_at, self._takes = lose_at, takes

    def request(self, header: Any, payloads: Any = (), *, deadline: float | None = None) -> Message:
        assert deadline == 7.0
        if isinstance(header, FindUploads):
            return UploadsReceived(received=tuple(len(self.files.get(row.hash, b"")) for row in header.tensors)), ()
        assert isinstance(header, PutUploads)
        if len(self.parts) in self._lose_at:
            self.files.pop(blake3(TENSORS[0]).digest(), None)
        self.parts.append([(part.offset, len(payload)) for part, payload in zip(header.parts, payloads, strict=True)])
        received = []
        for part, payload in zip(header.parts, payloads, strict=True):
            file = self.files.get(part.contents.hash, b"")
            if self._takes and len(file) == part.offset:
                file = self.files[part.contents.hash] = file + bytes(payload)
            received.append(len(file))
        return UploadsReceived(received=tuple(received)), ()


def uploads() -> TensorUploads:
    return TensorUploads({blake3(data).digest(): memoryview(data) for data in TENSORS}, UploadCounts())


def test_parts_keep_to_the_limits_and_make_the_whole() -> None:
    server, sent = Server(), uploads()
    assert sent.send(server, LIMITS, deadline=7.0)
    assert list(server.files.values()) == TENSORS
    assert server.parts == [[(0, 10)], [(10, 10)], [(20, 5), (0, 3)], [(0, 3), (0, 3)]]
    assert sent.counts == UploadCounts(total=34, there=34, found=0, sent=34)
    again = uploads()
    assert again.send(server, LIMITS, deadline=7.0)
    assert again.counts == UploadCounts(total=34, there=34, found=34, sent=0)


def test_what_the_server_lost_is_sent_again() -> None:
    server, sent = Server(lose_at=frozenset({2})), uploads()
    assert sent.send(server, LIMITS, deadline=7.0)
    assert sorted(server.files.values()) == sorted(TENSORS)
    assert sent.counts.there == 34
    assert sent.counts.sent > 34


def test_a_server_that_takes_nothing_is_an_error_and_no_endless_upload() -> None:
    server = Server(takes=False)
    with pytest.raises(WireBroken, match="does not take"):
        uploads().send(server, LIMITS, deadline=7.0)
    assert len(server.parts) == 9


def test_an_upload_stops_when_it_is_told_to() -> None:
    server = Server()
    assert not uploads().send(server, LIMITS, deadline=7.0, must_stop=lambda: len(server.parts) == 2)
    assert len(server.parts) == 2


@pytest.mark.parametrize("received", [(), (1,) * 5, (26, 0, 0, 0), (-1, 0, 0, 0)])
def test_an_answer_that_cannot_be_is_a_broken_wire(received: tuple[int, ...]) -> None:
    class Liar(Server):
        def request(self, header: Any, payloads: Any = (), *, deadline: float | None = None) -> Message:
            return UploadsReceived(received=received), ()

    with pytest.raises(WireBroken):
        uploads().send(Liar(), LIMITS)
