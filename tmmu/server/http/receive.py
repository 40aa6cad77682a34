"""Reading a request: its length and time have limits that hold before anything is allocated for it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from tmmu.errors import InvalidRequest, RequestTimeout, RequestTooLarge
from tmmu.server.settings import ServerSettings

Result = TypeVar("Result")


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """The body of a request, which is JSON. ``REQUEST_TOO_LARGE``, ``REQUEST_TIMEOUT`` or ``INVALID_REQUEST`` else."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(f"a body of type {kind[:80]!r}", fix="send Content-Type: application/json")
    announced = request.headers.get("content-length", "0")
    if len(announced) > 18 or int(announced) > settings.body_bytes:  # the protocol takes digits alone
        raise _too_large(settings)
    body = bytearray()
    try:
        async with asyncio.timeout(settings.receive_seconds):
            async for part in request.stream():
                if len(body) + len(part) > settings.body_bytes:
                    raise _too_large(settings)
                body += part
    except TimeoutError as error:
        raise RequestTimeout(
            f"the body did not come within {settings.receive_seconds:g} seconds", fix="send it at once"
        ) from error
    return bytes(body)


async def until_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``, which is cancelled where the client goes: ``ClientDisconnect``. The body was read."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_large(settings: ServerSettings) -> RequestTooLarge:
    return RequestTooLarge(
        f"the body has more than {settings.body_bytes} bytes", fix="send less", limit=settings.body_bytes
    )
