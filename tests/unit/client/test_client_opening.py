"""The client's part of an opening: what it says, and what it goes no further for."""

import pytest

from tmmu.client.client_opening import ClientOpening
from tmmu.errors import KeyRefused, WireBroken
from tmmu.wire.envelopes import ENCODER, decode_header
from tmmu.wire.frames import FrameKind
from tmmu.wire.limits import WireLimits
from tmmu.wire.opening import HELLO, PROOF, VERSIONS, Ready, Transcript, Welcome

KEY = "k" * 16


def welcome(**changes: object) -> memoryview:
    fields = {
        "version": VERSIONS[0],
        "nonce": bytes(32),
        "limits": WireLimits(),
        "heartbeat": 1000,
        "tags": True,
        "takes_keys": True,
    }
    return memoryview(ENCODER.encode(Welcome(**(fields | changes))))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_an_opening_proves_the_key_and_ends_ready(is_encrypted: bool) -> None:
    opening = ClientOpening(KEY, is_encrypted=is_encrypted)
    assert decode_header(HELLO, opening.hello).tags is not is_encrypted
    body = welcome(tags=not is_encrypted)
    proof = opening.take(FrameKind.WELCOME, body)
    assert proof is not None
    transcript = Transcript(opening.hello, body)
    assert transcript.is_proof(opening._secret, decode_header(PROOF, proof).proof)
    assert opening.ready is None
    assert opening.take(FrameKind.READY, memoryview(ENCODER.encode(Ready(client="key-1", connection="c")))) is None
    assert opening.ready == Ready(client="key-1", connection="c")
    assert [tagger.tag_bytes for tagger in opening.taggers()] == [0 if is_encrypted else 16] * 2


@pytest.mark.parametrize(
    ("key", "changes", "error"),
    [
        (None, {}, KeyRefused),
        (KEY, {"takes_keys": False}, KeyRefused),
        (KEY, {"tags": False}, WireBroken),
        (KEY, {"version": 250}, WireBroken),
    ],
)
def test_a_server_that_is_not_to_be_trusted_gets_no_proof(
    key: str | None, changes: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        ClientOpening(key, is_encrypted=False).take(FrameKind.WELCOME, welcome(**changes))


def test_frames_out_of_their_order_are_no_opening() -> None:
    ready = memoryview(ENCODER.encode(Ready(client="key-1", connection="c")))
    opening = ClientOpening(KEY, is_encrypted=False)
    with pytest.raises(WireBroken):
        opening.take(FrameKind.READY, ready)
    opening.take(FrameKind.WELCOME, welcome())
    with pytest.raises(WireBroken):
        opening.take(FrameKind.WELCOME, welcome())
    with pytest.raises(WireBroken):
        opening.take(FrameKind.ANSWER, ready)
