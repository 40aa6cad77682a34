import pytest

from tmmu.errors import WireBroken
from tmmu.wire.frames import PREAMBLE
from tmmu.wire.opening import NO_SECRET, VERSIONS, Transcript, choose_version


def test_a_proof_is_of_one_key_and_one_connection() -> None:
    transcript, key, other = Transcript(b"hello", b"welcome"), b"k" * 32, b"o" * 32
    proof = transcript.proof(key)
    assert transcript.is_proof(key, proof)
    assert not transcript.is_proof(other, proof)
    assert not transcript.is_proof(key, proof[:-1] + bytes([proof[-1] ^ 1]))
    for pair in ((b"hello", b"welcomf"), (b"hellp", b"welcome")):
        assert not Transcript(*pair).is_proof(key, proof)


def test_directions_have_tags_of_their_own() -> None:
    transcript = Transcript(b"hello", b"welcome")
    client, server = transcript.taggers(NO_SECRET, tags=True)
    tags = {tagger.next_tag(b"prefix", (b"body",)) for tagger in (client, server, client, server)}
    assert len(tags) == 4
    assert {tagger.next_tag(b"", (b"",)) for tagger in transcript.taggers(NO_SECRET, tags=False)} == {b""}


def test_the_highest_common_version_is_chosen() -> None:
    assert choose_version([0, *VERSIONS, 999]) == max(VERSIONS)
    with pytest.raises(WireBroken, match=r"versions \[0, 999\]"):
        choose_version([999, 0, 0])


def test_the_first_byte_begins_neither_http_nor_tls() -> None:
    assert not PREAMBLE[:1].isascii()
    assert PREAMBLE[0] != 0x16
