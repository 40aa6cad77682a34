"""Refusals as OpenAI's API has them: a status, and an object with ``message``, ``type``, ``param`` and ``code``."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from tmmu.errors import (
    DeadlineExceeded,
    DeviceMemory,
    InvalidConfig,
    InvalidRequest,
    KeyRefused,
    ModelUnknown,
    PromptTooLong,
    QuotaExceeded,
    RequestTimeout,
    RequestTooLarge,
    SegmentFull,
    ServerBusy,
    TmmuError,
)

RETRY_SECONDS: Final = 1
NO_RETRY: Final[Mapping[str, str]] = {"x-should-retry": "false"}
"""What OpenAI's client looks at, which else sends again what is too late or too large."""
STATUSES: Final[Mapping[type[TmmuError], tuple[int, str]]] = {
    InvalidConfig: (400, "invalid_request_error"),
    InvalidRequest: (400, "invalid_request_error"),
    PromptTooLong: (400, "invalid_request_error"),
    KeyRefused: (401, "authentication_error"),
    ModelUnknown: (404, "not_found_error"),
    RequestTimeout: (408, "invalid_request_error"),
    RequestTooLarge: (413, "invalid_request_error"),
    QuotaExceeded: (429, "rate_limit_error"),
    DeadlineExceeded: (504, "server_error"),
    ServerBusy: (503, "server_error"),
    SegmentFull: (503, "server_error"),
    DeviceMemory: (503, "server_error"),
}
"""Status and type of each cause that a client can mend or wait for; all others are 500."""


def status_of(error: TmmuError) -> tuple[int, str]:
    """The HTTP status of an error, and the type that OpenAI's API gives such ones."""
    return STATUSES.get(type(error), (500, "server_error"))


def error_object(error: TmmuError) -> dict[str, Any]:
    """What a client reads of an error; ``param`` names the field of its request, where one is at fault."""
    message = f"{error.what} ({error.fix})" if error.fix else error.what
    _, kind = status_of(error)
    return {"error": {"message": message, "type": kind, "param": error.fields.get("param"), "code": error.code}}


def _retry_headers(status: int, error: TmmuError) -> dict[str, str]:
    seconds = error.fields.get("retry_seconds", RETRY_SECONDS)
    if status == 503 or (status == 429 and seconds):
        return {"retry-after": str(seconds)}
    return dict(NO_RETRY) if status in (429, 504) else {}


def error_response(error: TmmuError) -> Response:
    """The whole answer to a request that is refused."""
    status, _ = status_of(error)
    headers = _retry_headers(status, error)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    return Response(msgspec.json.encode(error_object(error)), status, headers, "application/json")
