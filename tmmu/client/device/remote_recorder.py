"""Records calls on contents of one connection, runs them when a value is asked for, and fetches values.

State, under the lock: the recording; uploads that have not gone; numbers to free; values that were looked at.
Invariants: a content has a number that no other one had; what is freed is told with a request after which nothing that
is recorded reads it; a content that is not there says why.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from math import prod
from threading import RLock
from typing import Final
from weakref import WeakValueDictionary

import torch
from blake3 import blake3

from tmmu.client.device.contents import Content, RemoteStorage, UploadedTensor
from tmmu.client.device.device_counts import DeviceCounts
from tmmu.client.device.graph_link import GraphLink
from tmmu.client.device.recording import GraphToRun, PendingCall, PendingCalls, encode_form
from tmmu.client.forks import leave_to_parent
from tmmu.errors import InternalError, ReferenceStale, TmmuError, UnsupportedOp
from tmmu.kernel_switches import current_switches
from tmmu.runtime.memory.slab import row_major_bytes
from tmmu.wire.graph import MOST_CALLS as MOST_GRAPH_CALLS
from tmmu.wire.graph import (
    MOST_CONTENTS,
    ContentUpload,
    ContentWindow,
    GraphCall,
    OperatorForm,
    RecordedGraph,
    TensorSlot,
    form_hash,
)
from tmmu.wire.interface import Connection

MOST_CALLS: Final = 1024
"""Calls after which a recording runs, whether or not a value is asked for."""
MOST_STEP_CALLS: Final = MOST_GRAPH_CALLS
"""The same inside of a step function, which is to run as one."""
MOST_BYTES: Final = 1 << 30
"""Bytes of results after which it runs."""
UPLOAD_BYTES: Final = 64 << 20
"""Uploads go by themselves once they have so many bytes."""
FREE_BYTES: Final = 64 << 20
"""Contents are freed by a request of its own once they have so many bytes."""
KNOWN_BYTES: Final = 4096
"""Values of at most so many bytes are kept here, until they are written."""
_MOST_KNOWN: Final = 1024
_CLONE: Final = OperatorForm("aten.clone.default", (TensorSlot(0),), ())


class RemoteRecorder:
    """``counts`` says what it did. Whoever calls it has its ``lock``."""

    def __init__(self, connection: Connection, *, deadline: float | None = None) -> None:
        self.counts, self.lock, self.is_open = DeviceCounts(), RLock(), True
        self._link = GraphLink(connection, self.counts, deadline=deadline)
        self._recording, self._forms = PendingCalls(), dict[bytes, OperatorForm]()
        self._live: WeakValueDictionary[int, Content] = WeakValueDictionary()
        self._by_hash: WeakValueDictionary[bytes, Content] = WeakValueDictionary()
        self._uploads: dict[int, tuple[ContentUpload, memoryview]] = {}
        self._upload_bytes = self._next_number = self._free_bytes = 0
        self._ended: deque[tuple[int, int]] = deque()
        self._there = set[int]()
        """Contents that the server has or is about to have; all others end without its knowing."""
        self._freed: list[int] = []
        self._known: OrderedDict[Hashable, bytes] = OrderedDict()
        self._seed: int | None = None
        leave_to_parent(self)

    # -- contents

    def new_content(self, size: int, dtype: torch.dtype) -> Content:
        """A content that a call will make, or that is uploaded."""
        self._note_ended()
        if self._free_bytes >= FREE_BYTES and not self._recording.calls:
            self._request(None)
        content = Content(self._next_number, size, dtype, self._ended.append)
        self._next_number += 1
        self._live[content.number] = content
        return content

    def upload(self, tensor: torch.Tensor) -> Content:
        """A content with the bytes of a dense cpu tensor in memory order, which go with the next request.

        Bytes that are on the server already do not travel: the content may be another storage's, too.
        """
        self.require_open()
        flat = tensor.detach().as_strided((tensor.numel(),), (1,)) if tensor.numel() else tensor.reshape(-1)
        data = row_major_bytes(flat).numpy().tobytes()
        digest = blake3(data).digest()
        key = digest + str(tensor.dtype).encode()
        content = self._by_hash.get(key)
        if content is not None and content.version == 0 and content.failure is None:
            self.counts.reused += len(data)
            return content
        content = self.new_content(len(data), tensor.dtype)
        self._by_hash[key] = content
        upload = ContentUpload(content.number, len(data), digest)
        self._uploads[content.number] = upload, memoryview(data)
        self._upload_bytes += len(data)
        if self._upload_bytes >= UPLOAD_BYTES or len(self._uploads) >= self._link.most_uploads:
            self._request(None)
        return content

    def take_uploads(self, rows: Sequence[UploadedTensor]) -> list[Content]:
        """Contents of bytes that were sent before (``uploads.put``); equal ones are one. ``REFERENCE_STALE`` where the
        server has some of them no more.
        """
        with self.lock:
            self.require_open()
            contents: dict[bytes, Content] = {}
            uploads = []
            for row in rows:
                key = row.hash + str(row.dtype).encode()
                content = contents.get(key) or self._by_hash.get(key)
                if content is None or content.version or content.failure is not None:
                    content = self.new_content(row.bytes, row.dtype)
                    uploads.append(ContentUpload(content.number, row.bytes, row.hash))
                contents[key] = content
            self._there.update(upload.content for upload in uploads)
            for begin in range(0, len(uploads), MOST_CONTENTS):
                if self._link.take_uploads(uploads[begin : begin + MOST_CONTENTS]):
                    raise ReferenceStale("the server has deleted what was uploaded", fix="upload it again")
            self._by_hash.update(contents)
            self.counts.reused += sum(upload.bytes for upload in uploads)
            return [contents[row.hash + str(row.dtype).encode()] for row in rows]

    def unshare(self, storage: RemoteStorage) -> None:
        """Gives a storage that is about to be written a content of its own, with the same bytes."""
        if not storage.is_shared:
            return
        content = storage.content
        whole = whole_window(content)
        copy = self.new_content(content.bytes, content.dtype)
        self.record(_CLONE, [content], [whole], [(whole_window(copy), copy.bytes)])
        storage.exchange(copy)

    # -- recording

    def record(  # noqa: PLR0913 - what a call is
        self,
        form: OperatorForm,
        contents: Iterable[Content],
        windows: Sequence[ContentWindow],
        results: Sequence[tuple[ContentWindow, int] | None],
        *,
        written: Sequence[Content] = (),
        is_random: bool = False,
    ) -> None:
        """Adds a call that reads ``windows`` of ``contents``; ``results``: window and bytes of each new content."""
        recording, encoded = self._recording, encode_form(form)
        if encoded not in recording.forms:
            self._forms[form_hash(form)] = form
        for content in contents:
            require_there(content)
            if content.number not in recording.results:
                recording.sizes[content.number] = content.bytes
        call = PendingCall(
            form=encoded,
            tensors=windows,
            results=[None if result is None else result[0] for result in results],
            is_pure=not written and not is_random,
        )
        recording.add(call, [result[1] for result in results if result is not None])
        recording.is_random |= is_random
        for content in written:
            content.note_write()
            recording.written.add(content.number)

    def run_if_long(self, most_calls: int) -> None:
        """Runs a recording that has become too long, once its results are in tensors."""
        if self._is_long(most_calls):
            self._recording.drop_dead(self._live.__contains__)
            if self._is_long(most_calls):
                self.run()

    def _is_long(self, most_calls: int) -> bool:
        return len(self._recording.calls) >= most_calls or self._recording.result_bytes >= MOST_BYTES

    def set_seed(self, seed: int) -> None:
        """Draws of calls that are recorded from now on begin anew; those that were recorded draw as they would have."""
        with self.lock:
            if self._recording.is_random and self.is_connected:
                self.run()
            self._seed = seed

    def run(self) -> None:
        """Runs what is recorded, if anything."""
        with self.lock:
            if self._recording.calls or self._uploads:
                self._request(self._take())

    def free(self) -> None:
        """Has the server let go of what is gone here, without waiting for the next request."""
        with self.lock:
            self.run()
            self._note_ended()
            while self._freed:
                self._request(None)

    def run_sized(
        self,
        form: OperatorForm,
        contents: Sequence[Content],
        windows: Sequence[ContentWindow],
        dtypes: Sequence[torch.dtype],
    ) -> list[tuple[Content, ContentWindow]]:
        """Runs one call now, whose results, of these dtypes, have the sizes that values decide."""
        self.run()
        sizes = {content.number: content.bytes for content in contents}
        position = {number: index for index, number in enumerate(sizes)}
        local = [ContentWindow(position[w.content], w.offset, w.shape, w.stride, w.dtype) for w in windows]
        body = RecordedGraph(
            inputs=tuple(sizes.values()),
            results=(),
            windows=tuple(local),
            forms=(form_hash(form),),
            calls=(GraphCall(0, tuple(range(len(local))), ()),),
            outputs=(),
        )
        results = [self.new_content(0, dtype) for dtype in dtypes]
        self._there.update(content.number for content in results)
        told = self._link.run_sized(body, form, tuple(sizes), tuple(content.number for content in results))
        if len(told) != len(results):
            raise InternalError(f"{form.operator} has {len(told)} results, not {len(results)}")
        for content, window in zip(results, told, strict=True):
            content.bytes = prod(window.shape) * content.dtype.itemsize
        return list(zip(results, told, strict=True))

    # -- values

    def fetch(self, content: Content, window: ContentWindow) -> bytes:
        """The elements of a window, row-major, once all that is recorded has run."""
        self.require_open()
        require_there(content)
        key = (content.identity, window.offset, window.shape, window.stride, window.dtype)
        self.counts.looks += 1
        if key in self._known:
            self.counts.cached += 1
            self._known.move_to_end(key)
            return self._known[key]
        (payload,) = self._request(self._take(), [window])
        data = bytes(payload)
        self.counts.fetched += len(data)
        if len(data) <= KNOWN_BYTES:
            self._known[key] = data
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return data

    # -- requests

    @property
    def is_connected(self) -> bool:
        """Whether it is open, and its connection too."""
        return self.is_open and self._link.is_connected

    def require_open(self) -> None:
        """``REFERENCE_STALE`` once it is closed."""
        if not self.is_open:
            raise ReferenceStale("the remote device is closed", fix="connect again, and make the tensors again")

    def close(self) -> None:
        """Ends it: its tensors are stale, and what is recorded does not run."""
        with self.lock:
            self.is_open = False
            self._recording, self._uploads = PendingCalls(), {}

    def leave_to_parent(self) -> None:
        """As ``Forked.leave_to_parent``: its tensors are stale here, and as they were there."""
        self.lock = RLock()
        self.close()

    def _take(self) -> GraphToRun | None:
        if not self._recording.calls:
            return None
        switches = current_switches("cpu")
        if switches:
            raise UnsupportedOp(
                f"kernels are chosen by {switches[0][0]}, which the server does not know",
                fix="leave torch's switches at their defaults, or run on the cpu",
            )
        with self.counts.stages.within("build"):
            return self._recording.take(self._live.__contains__)

    def _note_ended(self) -> None:
        while self._ended:
            number, size = self._ended.popleft()
            if number in self._there:
                self._there.discard(number)
                self._freed.append(number)
                self._free_bytes += size

    def _request(self, graph: GraphToRun | None, fetched: Sequence[ContentWindow] = ()) -> Sequence[memoryview]:
        """One round trip. What fails leaves the contents that it would have made or changed without bytes."""
        self.require_open()
        read = () if graph is None else graph.inputs
        uploads = [row for number, row in self._uploads.items() if number in self._live or number in read]
        self._uploads, self._upload_bytes = {}, 0
        self._there.update(upload.content for upload, _ in uploads)
        self._there.update(() if graph is None else graph.outputs)
        self._note_ended()  # behind what it makes: some of it may have ended by now
        freed = [] if self._recording.calls else self._freed[:MOST_CONTENTS]
        if freed:
            self._freed = self._freed[MOST_CONTENTS:]
            self._free_bytes = 0
        seed, self._seed = self._seed, None
        forms = {} if graph is None else {name: self._forms[name] for name in graph.graph.forms}
        touched = () if graph is None else (*graph.outputs, *graph.written)
        try:
            with self.counts.stages.within("build"):
                failure, payloads = self._link.run(
                    graph, forms, uploads=uploads, freed=freed, fetched=fetched, seed=seed
                )
        except BaseException as error:
            self._freed = [*freed, *self._freed]
            self._seed = seed if self._seed is None else self._seed  # a request that is refused has changed nothing
            self._fail((*touched, *(upload.content for upload, _ in uploads)), error)
            raise
        self.counts.uploaded += sum(upload.bytes for upload, _ in uploads)
        if failure is not None:
            self._fail(touched, failure)
            raise failure
        return payloads

    def _fail(self, numbers: Iterable[int], error: BaseException) -> None:
        for number in numbers:
            content = self._live.get(number)
            if content is not None:
                content.failure = error if isinstance(error, TmmuError) else InternalError(type(error).__name__)


def require_there(content: Content) -> None:
    """``REFERENCE_STALE`` for a content whose making failed."""
    if content.failure is not None:
        raise ReferenceStale(
            f"the tensor has no bytes, since what would have made them failed: {content.failure.what}",
            fix="make the tensor again",
        )


def whole_window(content: Content) -> ContentWindow:
    """All of a content as one axis, in the dtype that it was made in."""
    elements = content.bytes // content.dtype.itemsize
    return ContentWindow(content.number, 0, (elements,), (1,), str(content.dtype).removeprefix("torch."))
