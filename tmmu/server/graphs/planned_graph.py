"""A checked graph inside a plan: its calls traced once, planned and judged, then bound to memory that each run reuses.

What the graph reads from outside is state that comes with each run, wherever it lies, so one binding serves all
contents of these sizes. A plan says nothing of anybody's values, and is shared (``graph_plans.py``); memory is a
connection's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch

from tmmu.cache import PlanCache
from tmmu.driver import PlanRequest, compile_graph, key_of_graph
from tmmu.errors import InternalError, InvalidConfig, InvalidRequest, UnsupportedOp
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

_MEMORY_OF_A_BYTE: Final = 96
"""Of program and plan, for each byte of a graph as it travels: 53 to 86 were measured, of 1,000 to 100 calls."""
_TOKEN = token_from_seed(0)
_REQUEST = PlanRequest(mode="inference", preset="inference", token=_TOKEN, arenas=default_arenas())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecording:
    """Program and plan of a graph; the plan was judged. ``memory``: bytes that they take themselves, as estimated."""

    program: Program
    plan: Plan
    constants: Mapping[str, torch.Tensor]
    memory: int

    @property
    def bytes(self) -> int:
        """What a binding takes and keeps: stack and constants, and the program, which others may have forgotten."""
        return self.memory + segment_bytes(self.plan.arenas, "stack") + segment_bytes(self.plan.arenas, "text")


def plan_recording(checked: CheckedGraph, cache: PlanCache | None) -> PlannedRecording:
    """Traces the graph's calls, plans and judges. The errors of capture and of plans where there can be none."""
    workload = _Replay(checked)
    with garbage_collection_off():
        captured = capture_workload(workload.load, CaptureRequest(model="", mode="inference", device="cpu"))
        program = lower_program(captured)
    key = None if cache is None else key_of_graph(program.graph, _REQUEST)
    compiled = compile_graph(program.graph, _REQUEST, cache=cache, key=key)
    constants = constant_values(captured)
    travels = len(msgspec.msgpack.encode(checked.graph))
    memory = _MEMORY_OF_A_BYTE * travels + sum(tensor.untyped_storage().nbytes() for tensor in constants.values())
    return PlannedRecording(program=program, plan=compiled.plan, constants=constants, memory=memory)


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
