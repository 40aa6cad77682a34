"""Frames cut into bytes anywhere are the same frames; bytes that are none end it."""

import random

import pytest

from tmmu.errors import WireBroken
from tmmu.wire.frame_reader import FrameReader
from tmmu.wire.frames import PREFIX, FrameKind, FrameTagger, encode_frame
from tmmu.wire.limits import CHUNK_BYTES, OPENING_BYTES, WireLimits

KEY = bytes(range(32))
LONGEST = WireLimits().frame_bytes


class Recorder:
    """Keeps what it is told; chunks of stream 9 are dropped."""

    def __init__(self) -> None:
        self.frames: list[tuple[FrameKind, int, bytes]] = []
        self.places: list[memoryview] = []

    def take_frame(self, kind: FrameKind, stream: int, body: memoryview) -> None:
        self.frames.append((kind, stream, bytes(body)))

    def place_of_chunk(self, stream: int, length: int) -> memoryview | None:
        self.places.append(memoryview(bytearray(length)))
        return None if stream == 9 else self.places[-1]

    def take_chunk(self, stream: int, length: int) -> None:
        self.frames.append((FrameKind.CHUNK, stream, b"" if stream == 9 else bytes(self.places[-1])))


def encoded(frames: list[tuple[FrameKind, int, bytes]], key: bytes | None) -> bytes:
    tagger = FrameTagger(key)
    return b"".join(b"".join(encode_frame(tagger, kind, stream, (body,))) for kind, stream, body in frames)


def opened(key: bytes | None) -> tuple[FrameReader, Recorder]:
    recorder = Recorder()
    reader = FrameReader(recorder)
    reader.open(FrameTagger(key), LONGEST)
    return reader, recorder


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("is_exact", [False, True])
def test_frames_are_the_same_wherever_their_bytes_are_cut(key: bytes | None, is_exact: bool) -> None:
    generator = random.Random(0)
    frames = [(FrameKind.PING, 0, bytes(8)), (FrameKind.REQUEST, 1, b"")]
    frames += [(FrameKind.REQUEST, 2, generator.randbytes(size)) for size in (1, 1400, 65_530, 65_536, 300_000)]
    frames += [(FrameKind.CHUNK, stream, generator.randbytes(size)) for stream in (3, 9) for size in (1, 70_000)]
    frames += [(FrameKind.CANCEL, 2, b""), (FrameKind.CREDIT, 7, b"abcd")] * 3
    data = memoryview(encoded(frames, key))
    for longest in (1, 7, 4096, 10**6):
        if longest == 1:
            data = memoryview(encoded(frames := frames[:2] + frames[-6:], key))
        reader, recorder = opened(key)
        reader.is_exact = is_exact
        left = data
        while left:
            place = reader.buffer()
            count = min(len(place), len(left), generator.randint(1, longest))
            place[:count] = left[:count]
            reader.advance(count)
            left = left[count:]
        assert not reader.is_amid_frame
        expected = [
            (kind, stream, b"" if (kind, stream) == (FrameKind.CHUNK, 9) else body) for kind, stream, body in frames
        ]
        assert recorder.frames == expected


def test_no_byte_of_a_chunk_is_read_into_the_buffer_while_a_message_comes_in_chunks() -> None:
    frames = [(FrameKind.CHUNK, 1, bytes(CHUNK_BYTES))] * 4
    left = memoryview(encoded(frames, KEY))
    reader, recorder = opened(KEY)
    reader.is_exact = True
    in_place = 0
    while left:
        place = reader.buffer()
        in_place += len(place) if len(place) > 1000 else 0
        count = min(len(place), len(left))
        place[:count] = left[:count]
        reader.advance(count)
        left = left[count:]
    assert in_place == 4 * CHUNK_BYTES
    assert len(recorder.frames) == 4


def test_a_changed_repeated_or_moved_frame_is_none() -> None:
    frames = [(FrameKind.REQUEST, 1, b"abc"), (FrameKind.REQUEST, 2, b"def")]
    data = encoded(frames, KEY)
    first, second = data[: len(data) // 2], data[len(data) // 2 :]
    for other in (first + first, second + first, second, b"".join((first[:-1], b"x"))):
        with pytest.raises(WireBroken, match=r"tag|no frame"):
            opened(KEY)[0].feed(other)
    for index in range(len(first)):
        changed = bytearray(first)
        changed[index] ^= 1
        with pytest.raises(WireBroken):
            opened(KEY)[0].feed(bytes(changed) + bytes(70_000))
    with pytest.raises(WireBroken, match="wrong tag"):
        opened(bytes(32))[0].feed(data)


@pytest.mark.parametrize(
    "prefix",
    [
        PREFIX.pack(0, 0, 0, 1, 0),
        PREFIX.pack(15, 0, 0, 1, 0),
        PREFIX.pack(FrameKind.REQUEST, 1, 0, 1, 0),
        PREFIX.pack(FrameKind.REQUEST, 0, 1, 1, 0),
        PREFIX.pack(FrameKind.REQUEST, 0, 0, 1, LONGEST + 1),
        PREFIX.pack(FrameKind.REQUEST, 0, 0, 1, (1 << 32) - 1),
        PREFIX.pack(FrameKind.PING, 0, 0, 1, 9),
        PREFIX.pack(FrameKind.CHUNK, 0, 0, 1, 0),
        PREFIX.pack(FrameKind.CHUNK, 0, 0, 1, CHUNK_BYTES + 1),
    ],
)
def test_a_prefix_that_is_none_is_refused_before_its_body(prefix: bytes) -> None:
    reader, recorder = opened(KEY)
    with pytest.raises(WireBroken):
        reader.feed(prefix)
    assert not recorder.places


def test_before_ready_frames_are_short_and_no_chunks() -> None:
    for prefix in (
        PREFIX.pack(FrameKind.HELLO, 0, 0, 0, OPENING_BYTES + 1),
        PREFIX.pack(FrameKind.CHUNK, 0, 0, 1, 8),
    ):
        with pytest.raises(WireBroken):
            FrameReader(Recorder()).feed(prefix)


def test_a_bare_failure_may_come_once_in_place_of_ready() -> None:
    bare = encoded([(FrameKind.FAILURE, 0, b"no")], None)
    for frames, is_taken in (([], True), ([(FrameKind.READY, 0, b"yes")], False)):
        recorder = Recorder()
        reader = FrameReader(recorder)
        reader.open(FrameTagger(KEY), LONGEST, may_fail=True)
        reader.feed(encoded(frames, KEY))
        if is_taken:
            reader.feed(bare)
            assert recorder.frames == [(FrameKind.FAILURE, 0, b"no")]
        else:
            with pytest.raises(WireBroken):
                reader.feed(bare + bytes(16))


def test_one_whole_request_is_taken_and_nothing_else() -> None:
    server, client = FrameTagger(bytes(32)), FrameTagger(bytes(32))
    reader = FrameReader(Recorder())
    reader.open(server, 1 << 20)

    def put(data: bytes) -> int:
        reader.buffer()[: len(data)] = data
        return len(data)

    def frame(kind: FrameKind, body: bytes) -> bytes:
        return b"".join(encode_frame(client, kind, 7, (body,)))

    for body in (b"", b"first", bytes(5000)):
        taken = reader.take_request(put(frame(FrameKind.REQUEST, body)))
        assert taken is not None
        assert (taken[0], bytes(taken[1])) == (7, body)
        assert not reader.is_amid_frame
    two = frame(FrameKind.REQUEST, b"a") + frame(FrameKind.REQUEST, b"b")
    for data in (frame(FrameKind.PING, bytes(8)), two, two[:20]):
        before = server._number
        count = put(data)
        assert reader.take_request(count) is None
        assert (server._number, reader.is_amid_frame) == (before, False), "it is there to be read yet"
    wrong = bytearray(b"".join(encode_frame(FrameTagger(bytes(32)), FrameKind.REQUEST, 7, (b"a",))))
    with pytest.raises(WireBroken, match="wrong tag"):
        reader.take_request(put(bytes(wrong)))
