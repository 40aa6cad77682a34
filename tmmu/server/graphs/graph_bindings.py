"""Which graphs of a connection run in a plan: the first run of one is call by call, the second plans and binds it."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from tmmu.errors import QuotaExceeded, SegmentFull, TmmuError, UserError
from tmmu.server.graphs.checked_graph import CheckedGraph
from tmmu.server.graphs.graph_limits import ClientUsage, GraphLimits
from tmmu.server.graphs.graph_plans import GraphPlans
from tmmu.server.graphs.planned_graph import BoundGraph

_WITHOUT_PLAN: Final = (UserError, QuotaExceeded, SegmentFull)


@dataclass(slots=True)
class GraphCounts:
    """Runs of one connection: ``planned`` inside a plan, ``plain`` call by call, ``sized`` of one call.

    ``bound``: bindings made. ``unplanned``: graphs that have no plan. ``fetched``: windows whose elements were sent.
    ``uploads``: contents that came, of ``upload_bytes`` together.
    """

    planned: int = 0
    plain: int = 0
    sized: int = 0
    bound: int = 0
    unplanned: int = 0
    fetched: int = 0
    uploads: int = 0
    upload_bytes: int = 0


class GraphBindings:
    """Bindings by graph, the least recently used first; a graph that was seen and has none yet, or never will, too."""

    def __init__(self, limits: GraphLimits, usage: ClientUsage, plans: GraphPlans, counts: GraphCounts) -> None:
        self._limits, self._usage, self._plans, self._counts = limits, usage, plans, counts
        self._entries: OrderedDict[bytes, BoundGraph | None] = OrderedDict()
        self._refused: dict[bytes, str] = {}

    def bound_graph(self, checked: CheckedGraph) -> BoundGraph | None:
        """The graph's binding once it has run to its end; ``None`` before, and where it has none.

        A binding's trial and its runs are not interrupted, and traces and draws of others wait for the trial, and for
        runs that draw; so a graph gets none that no run has ended soon.
        """
        name = checked.hash
        if name not in self._entries:
            return None
        entry = self._entries[name]
        self._entries.move_to_end(name)
        if entry is None and name not in self._refused:
            entry = self._bind(checked)
        return entry

    def note_end(self, checked: CheckedGraph, seconds: float) -> None:
        """The graph has run to its end, in so many seconds. One that takes long gets no binding."""
        if seconds <= self._limits.trial:
            self._entries.setdefault(checked.hash, None)
        self._forget_oldest()

    @property
    def count(self) -> int:
        """Bindings there are."""
        return sum(entry is not None for entry in self._entries.values())

    @property
    def bound_bytes(self) -> int:
        """What they take."""
        return sum(entry.bytes for entry in self._entries.values() if entry is not None)

    def why_unplanned(self) -> tuple[str, ...]:
        """The reasons for which graphs run call by call."""
        return tuple(self._refused.values())

    def close(self) -> None:
        """Gives back all memory."""
        for name in tuple(self._entries):
            self._unbind(name)

    def _bind(self, checked: CheckedGraph) -> BoundGraph | None:
        """Plans, judges and binds; where that cannot be, the graph runs call by call, with the same bits."""
        try:
            planned = self._plans.plan(checked, self._usage)
            zeros = sum(checked.graph.inputs)  # calls are tried on them in place of the inputs
            with self._usage.borrow(zeros + checked.scratch):
                self._usage.reserve(planned.bytes)
                try:
                    bound = BoundGraph(checked, planned)
                except BaseException:
                    self._usage.release(planned.bytes)
                    raise
        except TmmuError as error:
            if not isinstance(error, _WITHOUT_PLAN):
                raise
            self._counts.unplanned += 1
            self._refused[checked.hash] = str(error)
            return None
        self._counts.bound += 1
        self._entries[checked.hash] = bound
        live = [name for name, entry in self._entries.items() if entry is not None]
        for name in live[: max(len(live) - self._limits.plans, 0)]:
            self._unbind(name)
        return bound

    def _forget_oldest(self) -> None:
        while len(self._entries) > self._limits.graphs:
            self._unbind(next(iter(self._entries)))

    def _unbind(self, name: bytes) -> None:
        bound = self._entries.pop(name)
        self._refused.pop(name, None)
        if bound is not None:
            bound.close()
            self._usage.release(bound.bytes)
