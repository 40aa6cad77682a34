"""Calls that were recorded and have not run: in their order, on contents by their numbers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from blake3 import blake3

from tmmu.wire.graph import NO_CONTENT, ContentWindow, GraphCall, OperatorForm, RecordedGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphToRun:
    """A graph, and the contents that it runs on: ``inputs`` and ``outputs`` by number, in the graph's order."""

    graph: RecordedGraph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    written: frozenset[int]


class PendingCall(NamedTuple):
    """A call: its encoded form, the windows that it reads, and those of the contents that it makes."""

    form: bytes
    tensors: Sequence[ContentWindow]
    results: Sequence[ContentWindow | None]
    is_pure: bool
    """Whether it makes values of values, and neither writes nor draws."""


@dataclass(slots=True)
class PendingCalls:
    """``result_bytes``: of all contents that the calls make. ``is_random``: whether one of them draws."""

    forms: dict[bytes, bytes] = field(default_factory=dict)
    """Hash by encoded form, of all that were ever recorded."""
    calls: list[PendingCall] = field(default_factory=list)
    results: dict[int, int] = field(default_factory=dict)
    """Bytes of the contents that the calls make, by number."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of the contents that the calls read and do not make, by number, whether or not they live on."""
    written: set[int] = field(default_factory=set)
    result_bytes: int = 0
    is_random: bool = False

    def add(self, call: PendingCall, sizes: Iterable[int]) -> None:
        """Adds a call; ``sizes``: bytes of each content that it makes."""
        if call.form not in self.forms:
            self.forms[call.form] = blake3(call.form).digest()
        windows = [window for window in call.results if window is not None]
        for window, size in zip(windows, sizes, strict=True):
            self.results[window.content] = size
            self.result_bytes += size
        self.calls.append(call)

    def drop_dead(self, is_live: Callable[[int], bool]) -> None:
        """Forgets calls that make values of values which nobody has and no other call reads."""
        read: set[int] = set()
        rows = []
        for call in reversed(self.calls):
            numbers = [window.content for window in call.results if window is not None]
            if call.is_pure and not any(number in read or is_live(number) for number in numbers):
                for number in numbers:
                    self.result_bytes -= self.results.pop(number)
                continue
            read.update(window.content for window in call.tensors)
            rows.append(call)
        self.calls = rows[::-1]

    def take(self, is_live: Callable[[int], bool]) -> GraphToRun | None:
        """The graph of all calls, which are no longer pending; results that live are outputs. ``None`` for no call."""
        self.drop_dead(is_live)
        graph = _graph_of(self, is_live) if self.calls else None
        self.calls, self.results, self.sizes, self.written = [], {}, {}, set()
        self.result_bytes, self.is_random = 0, False
        return graph


def _graph_of(pending: PendingCalls, is_live: Callable[[int], bool]) -> GraphToRun:
    results = tuple(pending.results)
    read = dict.fromkeys(w.content for call in pending.calls for w in call.tensors if w.content not in pending.results)
    position = {number: index for index, number in enumerate((*read, *results))}
    windows: dict[ContentWindow, int] = {}
    hashes: dict[bytes, int] = {}

    def number_of(window: ContentWindow) -> int:
        local = ContentWindow(position[window.content], window.offset, window.shape, window.stride, window.dtype)
        return windows.setdefault(local, len(windows))

    calls = tuple(
        GraphCall(
            hashes.setdefault(pending.forms[call.form], len(hashes)),
            tuple(number_of(window) for window in call.tensors),
            tuple(NO_CONTENT if window is None else number_of(window) for window in call.results),
        )
        for call in pending.calls
    )
    outputs = tuple(number for number in results if is_live(number))
    graph = RecordedGraph(
        inputs=tuple(pending.sizes[number] for number in read),
        results=tuple(pending.results.values()),
        windows=tuple(windows),
        forms=tuple(hashes),
        calls=calls,
        outputs=tuple(position[number] for number in outputs),
    )
    return GraphToRun(graph=graph, inputs=tuple(read), outputs=outputs, written=frozenset(pending.written))


def encode_form(form: OperatorForm) -> bytes:
    """The bytes of a form: equal forms have equal bytes, ``1``, ``1.0`` and ``True`` differ."""
    return msgspec.msgpack.encode(form)
