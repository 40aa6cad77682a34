"""A checked graph inside a plan: its calls traced once, planned and judged, then bound to memory that each run reuses.

What the graph reads from outside is state that comes with each run, wherever it lies, so one binding serves all
contents of these sizes. A plan says nothing of anybody's values, and is shared; memory is a connection's own.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch

from tmmu.cache import PlanCache
from tmmu.driver import PlanRequest, compile_graph, key_of_graph
from tmmu.errors import InternalError, InvalidConfig, InvalidRequest, TmmuError, UnsupportedOp
from tmmu.ir.plan import Plan, segment_bytes
from tmmu.ir.program import Program
from tmmu.passes.capture.collection import garbage_collection_off
from tmmu.passes.capture.constants import constant_values
from tmmu.passes.capture.record.graph_builder import flatten
from tmmu.passes.capture.replace import TRACE_LOCK
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture_workload
from tmmu.passes.capture.workload import OwnedTensor, Workload
from tmmu.passes.pipeline import lower_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.token import token_from_seed
from tmmu.runtime.execute.bind import bind_executor
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.memory.slab import Slab
from tmmu.server.graphs.checked_graph import CheckedGraph, dtype_named
from tmmu.server.graphs.run_calls import own_storage
from tmmu.wire.graph import NO_CONTENT

_TOKEN = token_from_seed(0)
_REQUEST = PlanRequest(mode="inference", preset="inference", token=_TOKEN, arenas=default_arenas())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecording:
    """Program and plan of a graph; the plan was judged. ``bytes``: of stack and constants, which each binding takes."""

    program: Program
    plan: Plan
    constants: Mapping[str, torch.Tensor]

    @property
    def bytes(self) -> int:
        """What a binding takes and keeps."""
        return segment_bytes(self.plan.arenas, "stack") + segment_bytes(self.plan.arenas, "text")


class GraphPlans:
    """Plans by graph, or the reason why there is none; shared by all connections. Safe between threads.

    ``count``: graphs that were planned. ``cache``: where plans are kept on disk, if anywhere.
    """

    def __init__(self, *, most: int = 256, cache: PlanCache | None = None) -> None:
        self._most, self._cache, self._lock = most, cache, Lock()
        self._plans: OrderedDict[bytes, PlannedRecording | TmmuError] = OrderedDict()
        self._under_way: dict[bytes, Future[PlannedRecording | TmmuError]] = {}
        self.count = 0

    def plan(self, checked: CheckedGraph) -> PlannedRecording:
        """The plan of a graph, made if it is new; the error that says why it has none.

        Only who wants the same graph waits while it is planned.
        """
        with self._lock:
            planned = self._plans.get(checked.hash)
            future = self._under_way.get(checked.hash)
            is_mine = planned is None and future is None
            if planned is not None:
                self._plans.move_to_end(checked.hash)
            elif future is None:
                self.count += 1
                future = self._under_way[checked.hash] = Future()
        if future is not None:
            planned = self._make(checked, future) if is_mine else future.result()
        if isinstance(planned, TmmuError):
            raise planned
        assert planned is not None
        return planned

    def _make(
        self, checked: CheckedGraph, future: "Future[PlannedRecording | TmmuError]"
    ) -> PlannedRecording | TmmuError:
        try:
            try:
                planned: PlannedRecording | TmmuError = _plan(checked, self._cache)
            except TmmuError as error:
                planned = error
        except BaseException as error:
            with self._lock:
                del self._under_way[checked.hash]
            future.set_exception(error)
            raise
        with self._lock:
            del self._under_way[checked.hash]
            self._plans[checked.hash] = planned
            if len(self._plans) > self._most:
                self._plans.popitem(last=False)
        future.set_result(planned)
        return planned


def _plan(checked: CheckedGraph, cache: PlanCache | None) -> PlannedRecording:
    workload = _Replay(checked)
    with garbage_collection_off():
        captured = capture_workload(workload.load, CaptureRequest(model="", mode="inference", device="cpu"))
        program = lower_program(captured)
    key = None if cache is None else key_of_graph(program.graph, _REQUEST)
    compiled = compile_graph(program.graph, _REQUEST, cache=cache, key=key)
    return PlannedRecording(program=program, plan=compiled.plan, constants=constant_values(captured))


class _Replay:
    """The graph as a workload: its calls again, on fake tensors."""

    def __init__(self, checked: CheckedGraph) -> None:
        self._checked = checked
        self._bases: dict[int, torch.Tensor] = {}

    def load(self, _: object) -> Workload:
        """Inputs are state, whole storages of one dtype, called by their numbers."""
        checked = self._checked
        for content, size in enumerate(checked.graph.inputs):
            dtype = self._dtype_of(content)
            if size % dtype.itemsize:
                raise UnsupportedOp(f"content {content} is no whole number of {dtype}", fix="run it call by call")
            self._bases[content] = torch.empty(size // dtype.itemsize, dtype=dtype)
        owned = tuple(
            OwnedTensor(role="state", name=str(content), tensor=base) for content, base in self._bases.items()
        )
        return Workload(name="recorded graph", folder="", run=self._run, owned=owned)

    def _dtype_of(self, content: int) -> torch.dtype:
        names = {window.dtype for window in self._checked.graph.windows if window.content == content}
        return dtype_named(min(names)) if len(names) == 1 else torch.uint8

    def _run(self) -> Any:
        graph = self._checked.graph
        for row in self._checked.calls:
            tensors = [self._window(number) for number in row.tensors]
            for leaf, number in zip(flatten(row.call.compute(tensors)), row.results, strict=True):
                if number != NO_CONTENT:
                    self._bases[graph.windows[number].content] = leaf
            for content in row.dying:
                del self._bases[content]
        outputs = tuple(self._bases[content] for content in graph.outputs)
        return outputs or torch.zeros(1)  # a program has a result

    def _window(self, number: int) -> torch.Tensor:
        window = self._checked.graph.windows[number]
        base, dtype = self._bases[window.content], dtype_named(window.dtype)
        place = (tuple(base.shape), base.stride(), int(base.storage_offset()), base.dtype)
        if place == (window.shape, window.stride, window.offset, dtype):
            return base
        if base.dtype is not dtype:
            whole = base.as_strided((self._checked.bytes[window.content] // base.element_size(),), (1,), 0)
            base = whole.view(dtype)
        return base.as_strided(window.shape, window.stride, window.offset)


class BoundGraph:
    """A planned graph in memory of its own."""

    def __init__(self, checked: CheckedGraph, planned: PlannedRecording) -> None:
        self._checked, self.bytes = checked, planned.bytes
        request = BindRequest(
            program=planned.program,
            plan=planned.plan,
            token=_TOKEN,
            weights=dict(planned.constants),
            session=None,
            exact_strides=True,
        )
        with TRACE_LOCK:  # trials put torch's generators back as they find them
            self._executor = bind_executor(request)
        bound = self._executor.bound
        if bound.state is None or bound.inputs:
            raise InternalError("a recorded graph has inputs that are no state")
        self._state, self._names = bound.state, bound.graph.notes.buffers

    def run(self, inputs: Sequence[Slab]) -> Mapping[int, torch.Tensor]:
        """The outputs by content, each alone on its storage; inputs are changed in place."""
        views = self._state.views(lambda buffer: (inputs[int(self._names[buffer])], 0))
        try:
            results = self._executor.run({}, state=views)
        except InvalidConfig as error:  # what an operator refuses
            raise InvalidRequest(error.what, fix="give the operator what it takes") from error
        outputs = self._checked.graph.outputs
        return {} if not outputs else dict(zip(outputs, [own_storage(r, ()) for r in results], strict=True))

    def close(self) -> None:
        """Gives back its memory."""
        self._executor.close()
