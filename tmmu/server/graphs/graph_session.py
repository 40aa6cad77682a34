"""What one connection records: its contents, the graphs that it has sent, the plans bound for it, its random stream."""

import secrets
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import Lock
from time import monotonic
from typing import Final

import torch
from blake3 import blake3

from tmmu.errors import DeadlineExceeded, InvalidRequest, ReferenceStale, TmmuError, WireBroken
from tmmu.passes.shapes.inference import ShapeInference
from tmmu.server.graphs.call_forms import OperatorCall, operator_call
from tmmu.server.graphs.checked_graph import CheckedGraph, check_graph
from tmmu.server.graphs.contents import ContentStore, bytes_shown, tensor_of_file, view_window
from tmmu.server.graphs.graph_bindings import GraphBindings, GraphCounts
from tmmu.server.graphs.graph_limits import ClientUsage, GraphLimits
from tmmu.server.graphs.graph_plans import GraphPlans
from tmmu.server.graphs.random_stream import RandomStream
from tmmu.server.graphs.recorded_table import RecordedTable, encoded_size
from tmmu.server.graphs.run_calls import call_operator, own_storage, run_calls
from tmmu.server.graphs.sized_calls import most_bytes, require_sized_call
from tmmu.server.uploads.upload_store import UploadStore
from tmmu.wire.graph import (
    ContentUpload,
    ContentWindow,
    GraphAnswer,
    RecordedGraph,
    RunFailure,
    RunGraph,
    TakeUploads,
    UploadsTaken,
    form_hash,
    graph_hash,
)
from tmmu.wire.interface import Payloads, ServiceCall
from tmmu.wire.upload_messages import TensorContents

_FIX: Final = "use a client of this version"
_AGAIN: Final = "send it again"


class GraphSession:
    """The recordings of one connection. Its requests are answered one at a time, in the order in which they come."""

    def __init__(
        self,
        limits: GraphLimits,
        usage: ClientUsage,
        plans: GraphPlans,
        *,
        seed: int,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self.epoch, self.counts = secrets.token_bytes(32), GraphCounts()
        self.contents = ContentStore(usage)
        self.bindings = GraphBindings(limits, usage, plans, self.counts)
        self._limits, self._usage, self._random = limits, usage, RandomStream(seed)
        self._inference, self._lock, self._is_open = ShapeInference(), Lock(), True
        self._graphs: RecordedTable[CheckedGraph] = RecordedTable(limits.graphs, usage)
        self._forms: RecordedTable[OperatorCall] = RecordedTable(limits.forms, usage, first=self._graphs)

    def run(self, header: RunGraph, payloads: Payloads, call: ServiceCall) -> tuple[GraphAnswer, list[memoryview]]:
        """Uploads, runs, fetches and frees. A request that is refused, rather than answered, has changed nothing."""
        call.stages.enter("queue")
        with self._lock:
            call.stages.enter("lookup")
            self._require_epoch(header.epoch)
            lacking = self._find_lacking(header)
            if lacking is not None:
                return lacking, []
            call.stages.enter("execute")
            self._upload(header.uploads, payloads)
            if header.seed is not None:
                self._random.set_seed(header.seed)
            try:
                answer = self._run(header, call)
                fetched = self._fetch(header.fetched)
            except TmmuError as error:
                answer = GraphAnswer(failure=RunFailure(code=error.code, what=error.what, fix=error.fix))
                fetched = []
            self.contents.free(header.freed)
            return answer, fetched

    def take_uploads(self, header: TakeUploads, store: UploadStore, client: str) -> UploadsTaken:
        """Contents of bytes that the client has sent before: all that are named, or none where one is not there."""
        with self._lock:
            self._require_epoch(header.epoch)
            self.contents.require_new([upload.content for upload in header.uploads])
            files = [store.whole_file(client, TensorContents(row.hash, row.bytes)) for row in header.uploads]
            lacks = tuple(row.hash for row, file in zip(header.uploads, files, strict=True) if file is None)
            if lacks:
                return UploadsTaken(lacks=lacks)
            paths = [file for file in files if file is not None]
            size = sum(row.bytes for row in header.uploads)
            self._usage.reserve(size, len(paths))
            try:
                tensors = [tensor_of_file(file, row.bytes) for row, file in zip(header.uploads, paths, strict=True)]
            except BaseException:
                self._usage.release(size, len(paths))
                raise
            for row, tensor in zip(header.uploads, tensors, strict=True):
                self.contents.add(row.content, tensor)
            return UploadsTaken()

    def close(self) -> None:
        """Frees everything; a later request is refused."""
        with self._lock:
            self._is_open = False
            self.contents.clear()
            self.bindings.close()
            self._forms.clear()
            self._graphs.clear()

    def _require_epoch(self, epoch: bytes) -> None:
        if not self._is_open or not secrets.compare_digest(epoch, self.epoch):
            raise ReferenceStale("the remote device was closed or opened again", fix="make the tensors again")

    def _find_lacking(self, header: RunGraph) -> GraphAnswer | None:
        """What must come first, once what came was learned; ``None`` where nothing lacks."""
        for form in header.forms:
            name = form_hash(form)
            if not self._forms.renew(name):
                self._forms.keep(name, operator_call(form), encoded_size(form))
        if header.body is None:
            lacks = header.is_sized or (header.graph is not None and not self._graphs.renew(header.graph))
            return GraphAnswer(lacks_graph=True) if lacks else None
        missing = tuple(name for name in header.body.forms if name not in self._forms)
        if missing:
            return GraphAnswer(lacks_forms=missing, lacks_graph=True)
        if not header.is_sized:
            self._learn(header.body, header.graph)
        return None

    def _learn(self, body: RecordedGraph, name: bytes | None) -> None:
        if name is None or graph_hash(body) != name:
            raise WireBroken("a graph has another hash than was said", fix=_AGAIN)
        if not self._graphs.renew(name):
            self._usage.require_time(len(body.calls))
            with self._usage.spend_time():
                checked = check_graph(name, body, self._forms, self._inference, self._limits)
            self._graphs.keep(name, checked, encoded_size(body))

    def _upload(self, uploads: Sequence[ContentUpload], payloads: Payloads) -> None:
        if [upload.bytes for upload in uploads] != [len(payload) for payload in payloads]:
            raise InvalidRequest("payloads are not the contents that are uploaded", fix=_FIX)
        self.contents.require_new([upload.content for upload in uploads])
        for upload, payload in zip(uploads, payloads, strict=True):
            if blake3(payload).digest() != upload.hash:
                raise WireBroken(f"content {upload.content} has another hash than was said", fix=_AGAIN)
        self._usage.reserve(sum(upload.bytes for upload in uploads), len(uploads))
        for upload, payload in zip(uploads, payloads, strict=True):
            tensor = torch.empty(upload.bytes, dtype=torch.uint8)
            tensor.numpy().data[:] = payload
            self.contents.add(upload.content, tensor)
        self.counts.uploads += len(uploads)
        self.counts.upload_bytes += sum(upload.bytes for upload in uploads)

    def _run(self, header: RunGraph, call: ServiceCall) -> GraphAnswer:
        with self._usage.spend_time() as require_rest:

            def before_call() -> None:
                if call.is_cancelled:
                    raise DeadlineExceeded("nobody waits for the run any more", fix="give it a later deadline")
                require_rest()

            if header.is_sized and header.body is not None:
                return self._run_sized(header.body, header, before_call)
            if header.graph is not None:
                return GraphAnswer(planned=self._run_graph(self._graphs[header.graph], header, call, before_call))
            return GraphAnswer()

    def _run_graph(
        self, checked: CheckedGraph, header: RunGraph, call: ServiceCall, before_call: Callable[[], None]
    ) -> bool:
        """Runs a graph and keeps its results; whether it ran in a plan."""
        graph = checked.graph
        inputs = [self.contents.slab(content) for content in header.inputs]
        if [slab.size for slab in inputs] != list(graph.inputs) or len(header.outputs) != len(graph.outputs):
            raise InvalidRequest("contents are not those of the graph", fix=_FIX)
        if len(set(header.inputs)) < len(header.inputs):
            raise InvalidRequest("a content is two inputs of a graph", fix=_FIX)
        self.contents.require_new(header.outputs)
        self.contents.require_booleans(header.inputs[position] for position in checked.masks)
        self.contents.note_numbers(header.inputs[position] for position in checked.numbers)
        self._usage.require_time(len(checked.calls))
        begin = self._clock()
        call.stages.enter("lookup")
        bound = self.bindings.bound_graph(checked)
        call.stages.enter("execute")
        size = sum(checked.bytes[content] for content in graph.outputs)
        working = max(checked.peak - size, 0) if bound is None else checked.scratch
        self._usage.reserve(size, len(graph.outputs))
        try:
            with self._usage.borrow(working):
                if bound is None:
                    results = run_calls(checked, inputs, before_call, self._random.draw)
                else:
                    with self._random.draw() if checked.is_random else nullcontext():
                        results = bound.run(inputs)
        except BaseException:
            self._usage.release(size, len(graph.outputs))
            raise
        for reference, content in zip(header.outputs, graph.outputs, strict=True):
            self.contents.add(reference, results[content])
        self.bindings.note_end(checked, self._clock() - begin)
        self.counts.planned += bound is not None
        self.counts.plain += bound is None
        return bound is not None

    def _run_sized(self, body: RecordedGraph, header: RunGraph, before_call: Callable[[], None]) -> GraphAnswer:
        """Runs the one call of the body; its results are kept under the references, and their windows told."""
        operator = self._forms[body.forms[0]] if len(body.forms) == 1 else None
        if operator is None or len(body.calls) != 1:
            raise InvalidRequest("a sized call is one call", fix=_FIX)
        require_sized_call(body, operator, self._limits)
        slabs = [self.contents.slab(content) for content in header.inputs]
        if [slab.size for slab in slabs] != list(body.inputs):
            raise InvalidRequest("contents are not those of the call", fix=_FIX)
        self.contents.require_new(header.outputs)
        self.contents.require_booleans(header.inputs[w.content] for w in body.windows if w.dtype == "bool")
        self._usage.require_time(1)
        before_call()
        with self._usage.borrow(most_bytes(body, operator)):
            windows = [body.windows[number] for number in body.calls[0].tensors]
            tensors = [view_window(slabs[window.content], window) for window in windows]
            leaves = [leaf for leaf in call_operator(operator, tensors) if leaf is not None]
            if len(leaves) != len(header.outputs):
                raise InvalidRequest(f"{operator.operator} returns {len(leaves)} tensors", fix=_FIX)
            results = [own_storage(leaf, tensors) for leaf in leaves]
            self._usage.reserve(sum(result.untyped_storage().nbytes() for result in results), len(results))
            for reference, result in zip(header.outputs, results, strict=True):
                self.contents.add(reference, result)
        self.counts.sized += 1
        return GraphAnswer(windows=tuple(map(_window_of, header.outputs, results)))

    def _fetch(self, windows: Sequence[ContentWindow]) -> list[memoryview]:
        """What was asked for, in bytes that count while they are copied."""
        size = sum(map(bytes_shown, windows))
        with self._usage.borrow(size):
            self.counts.fetched += len(windows)
            return list(self.contents.fetch(windows, self._limits.window_elements))


def _window_of(content: int, tensor: torch.Tensor) -> ContentWindow:
    return ContentWindow(
        content=content,
        offset=int(tensor.storage_offset()),
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        dtype=str(tensor.dtype).removeprefix("torch."),
    )
