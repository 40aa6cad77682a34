"""Plans of graphs, shared by all connections, in as many bytes as the server has for them; no client has over half."""

from collections import Counter, OrderedDict
from concurrent.futures import Future
from threading import Lock
from typing import Any, Final, NamedTuple

from tmmu.cache import PlanCache
from tmmu.errors import TmmuError
from tmmu.server.graphs.checked_graph import CheckedGraph
from tmmu.server.graphs.graph_limits import ClientUsage, GraphLimits
from tmmu.server.graphs.planned_graph import PlannedRecording, plan_recording

_MOST_PLANS: Final = 4096
"""Of all clients; what a refusal takes is that of a few words."""
_REFUSAL_BYTES: Final = 4096


class _Entry(NamedTuple):
    planned: PlannedRecording | TmmuError
    usage: ClientUsage
    """Of the client for which it was planned first."""
    memory: int


class GraphPlans:
    """Plans by graph, or the reason why there is none. Safe between threads.

    Kept are ``limits.planned`` bytes of memory, as estimated: what was used longest ago makes room, of a client that
    has half of them its own. ``count``: graphs that were planned. ``cache``: where plans are kept on disk, if anywhere.
    """

    def __init__(self, limits: GraphLimits, *, cache: PlanCache | None = None) -> None:
        self._limits, self._cache, self._lock = limits, cache, Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._memory_of = Counter[ClientUsage]()
        self._under_way: dict[bytes, Future[PlannedRecording | TmmuError]] = {}
        self.count = 0

    @property
    def memory(self) -> int:
        """Bytes of what is kept, as estimated."""
        with self._lock:
            return self._memory_of.total()

    def plan(self, checked: CheckedGraph, usage: ClientUsage) -> PlannedRecording:
        """The plan of a graph, made for a client if it is new; the error that says why it has none.

        While it is planned who wants the same graph waits, and the same client with others.
        """
        with self._lock:
            entry = self._entries.get(checked.hash)
            future = self._under_way.get(checked.hash)
            is_mine = entry is None and future is None
            if entry is not None:
                self._entries.move_to_end(checked.hash)
            elif future is None:
                self.count += 1
                future = self._under_way[checked.hash] = Future()
        if entry is not None:
            planned = entry.planned
        else:
            assert future is not None
            planned = self._make(checked, usage, future) if is_mine else future.result()
        if isinstance(planned, TmmuError):
            raise _copy_of(planned)
        return planned

    def _make(
        self, checked: CheckedGraph, usage: ClientUsage, future: "Future[PlannedRecording | TmmuError]"
    ) -> PlannedRecording | TmmuError:
        try:
            planned: PlannedRecording | TmmuError
            try:
                with usage.planning:
                    planned = plan_recording(checked, self._cache)
            except TmmuError as error:
                planned = _copy_of(error)
        except BaseException as error:
            with self._lock:
                del self._under_way[checked.hash]
            future.set_exception(error)
            raise
        with self._lock:
            del self._under_way[checked.hash]
            self._keep(checked.hash, planned, usage)
        future.set_result(planned)
        return planned

    def _keep(self, name: bytes, planned: PlannedRecording | TmmuError, usage: ClientUsage) -> None:
        """Keeps a plan where one of its size may be, once others made room; with the lock."""
        memory = _REFUSAL_BYTES if isinstance(planned, TmmuError) else planned.memory
        most = self._limits.planned
        if memory > most // 2:
            return
        while self._memory_of[usage] + memory > most // 2:
            self._forget(next(each for each, entry in self._entries.items() if entry.usage is usage))
        while self._memory_of.total() + memory > most or len(self._entries) >= _MOST_PLANS:
            self._forget(next(iter(self._entries)))
        self._entries[name] = _Entry(planned, usage, memory)
        self._memory_of[usage] += memory

    def _forget(self, name: bytes) -> None:
        entry = self._entries.pop(name)
        self._memory_of[entry.usage] -= entry.memory
        if not self._memory_of[entry.usage]:
            del self._memory_of[entry.usage]


def _copy_of(error: TmmuError) -> TmmuError:
    """The same error without a traceback, which would keep all that was there when it was raised."""
    copy: Any = type(error)(error.what, fix=error.fix, **dict(error.fields))
    return copy  # type: ignore[no-any-return]
