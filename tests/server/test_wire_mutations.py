"""Frames that were changed at random: in process, without a socket, and to a thread that stays."""

import random
import socket
import struct
from typing import Any

import pytest

from tests.server.raw_frames import RawClient, request_of
from tests.server.wire_bytes import BytesConnection
from tests.server.wire_running import running_wire
from tests.unit.wire.sums import Add, Sums
from tmmu.server.wire.connection import thread_stay
from tmmu.wire.frames import CREDIT, FrameKind


def mutated(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        way = generator.randrange(5)
        place = generator.randrange(len(changed)) if changed else 0
        if way == 0 and changed:
            changed[place] ^= 1 << generator.randrange(8)
        elif way == 1:
            changed[place:place] = generator.randbytes(generator.randint(1, 20))
        elif way == 2:
            del changed[place : place + generator.randint(1, 20)]
        elif way == 3:
            changed[place : place + 4] = struct.pack("<I", generator.choice([0, 1, 255, 1 << 16, (1 << 32) - 1]))
        else:
            changed += changed[place:]
    return bytes(changed)


@pytest.mark.parametrize(
    "count",
    [
        300,
        pytest.param(10_000, marks=pytest.mark.slow),
        pytest.param(1_000_000, marks=pytest.mark.long),
    ],
)
def test_mutated_frames_crash_and_hang_nothing(count: int) -> None:
    """Bodies and prefixes are changed before they get their tags: what no tag finds is found by what reads them."""
    generator = random.Random(count)
    sums = Sums()
    connection: Any = None
    bodies = [
        (FrameKind.REQUEST, request_of([], Add(numbers=(1, 2)))),
        (FrameKind.REQUEST, request_of([3, 0], Add(returns=True), inline=b"abc")),
        (FrameKind.REQUEST, request_of([70_000], Add())),
        (FrameKind.CREDIT, CREDIT.pack(4096)),
        (FrameKind.CANCEL, b""),
        (FrameKind.PING, bytes(8)),
        (FrameKind.CHUNK, bytes(300)),
    ]
    ended = 0
    for number in range(count):
        if connection is None or connection.is_over:
            ended += connection is not None
            connection = BytesConnection([sums])
        kind, body = generator.choice(bodies)
        stream = connection.next_stream() if kind is FrameKind.REQUEST else generator.randrange(40)
        frame = connection.encoded(kind, stream, mutated(body, generator) if generator.random() < 0.8 else body)
        connection.feed(mutated(frame, generator) if generator.random() < 0.2 else frame)
        if number % 1000 == 0:
            connection.settle()
    assert ended > count // 50
    assert connection.most_held < 4 << 20


@pytest.mark.parametrize(
    "count", [40, pytest.param(2000, marks=pytest.mark.slow), pytest.param(100_000, marks=pytest.mark.long)]
)
def test_mutated_frames_to_a_thread_that_stays_end_no_other_than_their_connection(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_stay, "WAIT_MILLISECONDS", 100)
    generator, sums, broken, stays = random.Random(count), Sums(), 0, 0
    body = request_of([3, 0], Add(returns=True), inline=b"abc")
    with running_wire([sums], payload_bytes="8MiB") as wire:  # a client that says nothing is there for long
        for _ in range(count):
            client = RawClient(wire)
            for stream in (1, 2):
                client.socket.sendall(client.encoded(FrameKind.REQUEST, stream, body))
                assert client.frame()[:2] == (FrameKind.ANSWER, stream)
            stays += any(served._stay.owner is not None for served in tuple(wire.door.connections))
            frame = client.encoded(FrameKind.REQUEST, 3, mutated(body, generator))
            client.socket.sendall(frame if generator.random() < 0.5 else mutated(frame, generator))
            client.socket.shutdown(socket.SHUT_WR)
            broken += b"WIRE_BROKEN" in client.rest()
            client.socket.close()
        wire.wait_for(lambda: not wire.connections and not wire.door.running)
        assert wire.connect().request(Add(numbers=(1, 2)))[0].value == 3
    assert broken > count // 10
    assert stays > count // 10
