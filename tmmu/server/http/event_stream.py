"""A stream of server-sent events, whose client has a deadline for each part that it takes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class EventStream(StreamingResponse):
    """Sends what ``parts`` yields, and calls ``end`` whatever happens.

    A part may take ``send_seconds`` to be sent; a client that takes longer is gone.
    """

    def __init__(self, parts: AsyncIterator[bytes], end: Callable[[], Awaitable[None]], *, send_seconds: float) -> None:
        super().__init__(parts, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._end, self._send_seconds = end, send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as of any response
        """The whole response; ``ClientDisconnect`` where the client went."""
        stream = asyncio.create_task(self._stream(send))
        watch = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait((stream, watch), return_when=asyncio.FIRST_COMPLETED)
            if not stream.done():
                raise ClientDisconnect
            stream.result()
        finally:
            for task in (stream, watch):
                task.cancel()
            await asyncio.gather(stream, watch, return_exceptions=True)
            await self._end()

    async def _stream(self, send: Send) -> None:
        async def send_in_time(message: dict[str, object]) -> None:
            try:
                async with asyncio.timeout(self._send_seconds):
                    await send(message)
            except TimeoutError as error:
                raise ClientDisconnect from error

        await self.stream_response(send_in_time)  # type: ignore[arg-type]
