"""Requests to the server's graph service: forms and graphs travel once, then by hash."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from tmmu import errors
from tmmu.client.device.device_counts import DeviceCounts
from tmmu.client.device.recording import GraphToRun
from tmmu.client.request_trace import newest_span
from tmmu.errors import InternalError, TmmuError, WireBroken
from tmmu.wire.graph import (
    MOST_CONTENTS,
    ContentUpload,
    ContentWindow,
    GraphAnswer,
    OpenDevice,
    OperatorForm,
    RecordedGraph,
    RunFailure,
    RunGraph,
    TakeUploads,
    graph_hash,
)
from tmmu.wire.interface import Connection, Message, RequestHeader

_CLASSES: Final[dict[str, type[TmmuError]]] = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, TmmuError) and "code" in vars(error)
}
_MOST_ATTEMPTS: Final = 3


class GraphLink:
    """``deadline``: seconds that a request may take; ``None``: those of the connection."""

    def __init__(self, connection: Connection, counts: DeviceCounts, *, deadline: float | None) -> None:
        self._connection, self._counts, self._deadline = connection, counts, deadline
        opened, _ = self._ask(OpenDevice(torch=str(torch.__version__), seed=_as_signed(torch.initial_seed())))
        self._epoch: bytes = opened.epoch  # type: ignore[attr-defined]
        self._sent_forms: set[bytes] = set()
        self._sent_graphs: set[bytes] = set()

    def run(  # noqa: PLR0913 - all that one request may say
        self,
        graph: GraphToRun | None,
        forms: dict[bytes, OperatorForm],
        *,
        uploads: Sequence[tuple[ContentUpload, memoryview]] = (),
        freed: Sequence[int] = (),
        fetched: Sequence[ContentWindow] = (),
        seed: int | None = None,
    ) -> tuple[TmmuError | None, Sequence[memoryview]]:
        """Runs a graph whose forms are among ``forms``, by hash: what the run failed of, and what was fetched."""
        header = RunGraph(
            epoch=self._epoch,
            uploads=tuple(upload for upload, _ in uploads),
            freed=tuple(freed),
            fetched=tuple(fetched),
            seed=seed,
        )
        if graph is not None:
            name = graph_hash(graph.graph)
            header = _with(header, graph=name, inputs=graph.inputs, outputs=graph.outputs)
            if name not in self._sent_graphs:
                header = self._with_body(header, graph.graph, forms)
        answer, payloads = self._send(header, [payload for _, payload in uploads], graph, forms)
        self._counts.runs += graph is not None
        self._counts.planned += answer.planned
        return None if answer.failure is None else _span_error(answer.failure), payloads

    @property
    def most_uploads(self) -> int:
        """Contents that one request may upload."""
        return min(MOST_CONTENTS, self._connection.limits.payloads)

    @property
    def is_connected(self) -> bool:
        """Whether requests may be sent."""
        return self._connection.is_open

    def take_uploads(self, uploads: Sequence[ContentUpload]) -> tuple[bytes, ...]:
        """Makes contents of bytes that were sent before; hashes of those that are not there, and then makes none."""
        answer, _ = self._ask(TakeUploads(epoch=self._epoch, uploads=tuple(uploads)))
        lacks: tuple[bytes, ...] = answer.lacks  # type: ignore[attr-defined] # TakeUploads names the class
        return lacks

    def run_sized(
        self, body: RecordedGraph, form: OperatorForm, inputs: tuple[int, ...], outputs: tuple[int, ...]
    ) -> tuple[ContentWindow, ...]:
        """Runs one call whose results have the sizes that values decide; their windows, numbered ``outputs``."""
        header = RunGraph(epoch=self._epoch, body=body, forms=(form,), inputs=inputs, outputs=outputs, is_sized=True)
        answer, _ = self._send(header, (), None, {})
        if answer.failure is not None:
            raise _span_error(answer.failure)
        return answer.windows

    def _send(
        self,
        header: RunGraph,
        payloads: Sequence[memoryview],
        graph: GraphToRun | None,
        forms: dict[bytes, OperatorForm],
    ) -> tuple[GraphAnswer, Sequence[memoryview]]:
        """The answer, once the server has all that it lacks: it may forget what came long ago."""
        for _ in range(_MOST_ATTEMPTS):
            answer: Any
            answer, beside = self._ask(header, payloads)
            if not (answer.lacks_graph or answer.lacks_forms) or graph is None:
                return answer, beside
            self._sent_graphs.discard(header.graph or b"")
            self._sent_forms -= set(graph.graph.forms)
            header = self._with_body(header, graph.graph, forms)
        raise WireBroken("the server asks again and again for a graph that it was sent", fix="connect again")

    def _ask(self, header: RequestHeader, payloads: Sequence[memoryview] = ()) -> Message:
        """One round trip."""
        before = newest_span()
        try:
            with self._counts.stages.within("request"):
                answer = self._connection.request(header, payloads, deadline=self._deadline)
        finally:
            span = newest_span()
            self._counts.stages.note_request(None if span is before else span)
        self._counts.requests += 1
        return answer

    def _with_body(self, header: RunGraph, body: RecordedGraph, forms: dict[bytes, OperatorForm]) -> RunGraph:
        missing = tuple(name for name in body.forms if name not in self._sent_forms)
        self._sent_forms.update(missing)
        self._sent_graphs.add(header.graph or b"")
        return _with(header, body=body, forms=tuple(forms[name] for name in missing))


def _with(header: RunGraph, **changes: Any) -> RunGraph:
    fields = {name: getattr(header, name) for name in header.__struct_fields__}
    return RunGraph(**(fields | changes))


def _span_error(failure: RunFailure) -> TmmuError:
    """As ``error_of``; the span of the request that this thread ended last is told, since that one did not fail."""
    span = newest_span()
    if span is not None:
        span.code = failure.code
    return error_of(failure)


def error_of(failure: RunFailure) -> TmmuError:
    """The error that a run ended with, of its own class."""
    return _CLASSES.get(failure.code, InternalError)(failure.what, fix=failure.fix)


def _as_signed(seed: int) -> int:
    """A seed of torch's, an unsigned number of 64 bits, as a signed one that means the same."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
