"""The application: paths, and what every request goes through: trace, host, key, log, counts, refusals."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tmmu.errors import InternalError, InvalidRequest, KeyRefused, RequestTooLarge, TmmuError
from tmmu.server.admission.request_terms import CLASS_HEADER
from tmmu.server.admission.rights import DEFAULT_RIGHTS
from tmmu.server.http.completions import CompletionDoor
from tmmu.server.http.refusals import error_object, error_response
from tmmu.server.keys import KeyRing
from tmmu.server.logs import log_event
from tmmu.server.metrics import CONTENT_TYPE, ServerMetrics
from tmmu.server.model_table import ModelTable
from tmmu.server.served_model import ServedModel
from tmmu.server.settings import ServerSettings
from tmmu.server.spans import log_spans
from tmmu.wire.stages import StageTimeline
from tmmu.wire.trace_context import continue_trace

OPEN_PATHS: Final = ("/health", "/ready")
"""Answered without a key: they say nothing but whether the server is there."""
CLIENT_GONE: Final = 499
"""The status in log and metrics of a request whose client went before its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorContext:
    """What the door needs to know. ``keys``: ``None`` where anybody on this machine may come in."""

    models: ModelTable
    metrics: ServerMetrics
    settings: ServerSettings
    keys: KeyRing | None


def build_app(context: DoorContext) -> ASGIApp:
    """The application of a server."""
    door, pages = CompletionDoor(context.models, context.settings), _Pages(context)
    routes = [
        Route("/health", pages.health, methods=["GET"]),
        Route("/ready", pages.ready, methods=["GET"]),
        Route("/metrics", pages.metrics, methods=["GET"]),
        Route("/v1/models", pages.models, methods=["GET"]),
        Route("/v1/models/{name:path}", pages.model, methods=["GET"]),
        Route("/v1/completions", door.complete, methods=["POST"]),
        Route("/v1/chat/completions", door.chat, methods=["POST"]),
    ]
    handlers: Mapping[Any, Callable[[Request, Any], Any]] = {HTTPException: _no_such_path, TmmuError: _refuse}
    gate = Middleware(RequestGate, context=context)  # inside of starlette's own answer to failures, which is no object
    return Starlette(routes=routes, exception_handlers=handlers, middleware=[gate])


class _Pages:
    """What is answered without generating."""

    def __init__(self, context: DoorContext) -> None:
        self._models, self._metrics = context.models, context.metrics

    async def health(self, _: Request) -> Response:
        """200 as long as the process answers."""
        return _json({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """200 while requests are taken, else 503: models are being loaded, one has failed, or the server is to end."""
        models = self._models
        if models.is_ready:
            return _json({"status": "ready"})
        state = "draining" if models.is_draining else "failed" if models.has_failed else "loading"
        return _json({"status": state}, 503)

    async def metrics(self, _: Request) -> Response:
        """All counters, in prometheus' text."""
        return Response(await asyncio.to_thread(self._metrics.page), headers={"content-type": CONTENT_TYPE})

    async def models(self, _: Request) -> Response:
        """The models that are there."""
        return _json({"object": "list", "data": [_model_object(model) for model in self._models.models]})

    async def model(self, request: Request) -> Response:
        """One model."""
        return _json(_model_object(self._models.find(request.path_params["name"])))


class RequestGate:
    """Lets requests in: gives each a span, checks who comes, and notes how it went."""

    def __init__(self, app: ASGIApp, context: DoorContext) -> None:
        self._app, self._context = app, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        headers, stages = Headers(scope=scope), StageTimeline()
        trace = continue_trace(headers.get("traceparent"))
        fields: dict[str, Any] = {"trace": trace.trace, "span": trace.span, "parent": trace.parent or None}
        scope.setdefault("state", {}).update(log=fields, rights=DEFAULT_RIGHTS, stages=stages)
        status = CLIENT_GONE

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                named = [(b"traceparent", trace.traceparent.encode()), (b"x-request-id", trace.span.encode())]
                named += [(CLASS_HEADER.encode(), fields["class"].encode())] if "class" in fields else []
                message = {**message, "headers": [*message["headers"], *named]}
            await send(message)

        try:
            await self._admit(scope, headers, fields, receive, send_named)
        except ClientDisconnect:
            fields["disconnected"] = True
            self._context.metrics.note_disconnect()
        except Exception as error:  # noqa: BLE001 - one request that fails is not the server
            log_event("request_failed", level=logging.ERROR, failure=error, **fields)
            fields["code"] = InternalError.code
            if status == CLIENT_GONE:
                await error_response(InternalError("the request failed", fix="the server's log has more"))(
                    scope, receive, send_named
                )
        finally:
            seconds = stages.end()
            if "model" in fields:
                fields["stages"] = {stage: round(taken, 6) for stage, taken in stages.seconds.items()}
                self._context.metrics.note_stages(stages.seconds)
                log_spans(trace, stages.seconds)
            self._note(scope, fields, status, seconds)

    async def _admit(
        self, scope: Scope, headers: Headers, fields: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        try:
            _require_size(scope, self._context.settings.header_bytes)
            if scope["path"] not in OPEN_PATHS:
                self._check(headers, fields)
                if self._context.keys is not None:
                    scope["state"]["rights"] = self._context.keys.rights_of(fields["client"])
        except TmmuError as error:
            fields["code"] = error.code
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, fields: dict[str, Any]) -> None:
        """``KEY_REFUSED`` for who has no key of this server; without keys, ``INVALID_REQUEST`` for another host's name.

        A page of another site whose name leads here is a stranger, though its browser is on this machine.
        """
        keys = self._context.keys
        if keys is None:
            host = headers.get("host", "").lower()
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if not _is_own_name(name):
                raise InvalidRequest(f"a request for the host {name[:80]!r}", fix="call it by 127.0.0.1 or localhost")
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not key.strip():
            raise KeyRefused("the request has no key", fix="send Authorization: Bearer KEY")
        fields["client"] = keys.client_of(key.strip())

    def _note(self, scope: Scope, fields: dict[str, Any], status: int, seconds: float) -> None:
        route = scope.get("route")
        path = route.path if isinstance(route, Route) else scope["path"] if scope["path"] in OPEN_PATHS else "other"
        self._context.metrics.note_answer(path, status, seconds)
        if "code" in fields:
            self._context.metrics.note_refusal(str(fields["code"]))
        level = logging.DEBUG if path in (*OPEN_PATHS, "/metrics") else logging.INFO
        log_event(
            "request",
            level=level,
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            seconds=round(seconds, 6),
            **fields,
        )


def _require_size(scope: Scope, limit: int) -> None:
    """``REQUEST_TOO_LARGE`` for headers that came at once: the protocol counts those alone that it waits for."""
    line = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"])
    size = line + sum(len(name) + len(value) for name, value in scope["headers"])
    if size > limit:
        raise RequestTooLarge(f"request line and headers have more than {limit} bytes", fix="send less", limit=limit)


def _is_own_name(name: str) -> bool:
    """Whether a host is this machine by its name: ``localhost``, an address of loopback, or none, of old clients."""
    if name in ("", "localhost"):
        return True
    try:
        return ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _refuse(request: Request, error: TmmuError) -> Response:
    request.state.log["code"] = error.code
    return error_response(error)


def _no_such_path(request: Request, error: HTTPException) -> Response:
    fix = "docs/spec/serve.md lists the paths"
    refusal = InvalidRequest(f"{request.method} {request.url.path[:80]}: {error.detail}", fix=fix)
    request.state.log["code"] = refusal.code
    return _json(error_object(refusal), error.status_code)


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _model_object(model: ServedModel) -> dict[str, Any]:
    """A model as OpenAI's API lists it; ``max_model_len`` is how vLLM names the longest session."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "tmmu",
        "max_model_len": model.longest,
    }
