"""A stream of events ends once, however it ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from tmmu.server.http.event_stream import EventStream


async def parts_of(count: int, failure: Exception | None = None) -> AsyncIterator[bytes]:
    for number in range(count):
        yield b"%d" % number
    if failure:
        raise failure


def sent_by(parts: AsyncIterator[bytes], *, send: Any = None, goes: bool = False) -> tuple[list[Any], int]:
    """What a client was sent, and how often the stream was ended; a failure of the stream is raised."""
    messages: list[Any] = []
    ends: list[int] = []

    async def respond() -> None:
        async def end() -> None:
            ends.append(1)

        async def receive() -> dict[str, str]:
            if not goes:
                await asyncio.sleep(3600)
            return {"type": "http.disconnect"}

        async def note(message: Any) -> None:
            messages.append(message)
            if send is not None:
                await send()

        stream = EventStream(parts, end, send_seconds=0.05)
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        try:
            await stream(scope, receive, note)
        finally:
            assert len(ends) == 1

    asyncio.run(respond())
    return messages, len(ends)


def test_whole_stream_is_sent() -> None:
    messages, _ = sent_by(parts_of(2))
    assert [message.get("body") for message in messages] == [None, b"0", b"1", b""]


async def never() -> None:
    await asyncio.sleep(3600)


def test_client_that_takes_nothing_is_gone() -> None:
    with pytest.raises(ClientDisconnect):
        sent_by(parts_of(2), send=never)


def test_client_that_goes_ends_it() -> None:
    with pytest.raises(ClientDisconnect):
        sent_by(parts_of(2), send=lambda: asyncio.sleep(0.01), goes=True)


def test_failure_of_what_is_sent_ends_it() -> None:
    with pytest.raises(RuntimeError, match="fault"):
        sent_by(parts_of(1, RuntimeError("fault")))
