"""From the two graphs of a training step, as autograd splits it, to one program in two halves.

Both graphs run once, one after the other, on fake tensors under the recorder; what the first saves flows into the
second as it is, so that the recording is one step, forward and backward, in one order. Where a half hands
something out, a call that does nothing reads it: until then it must be there, and no longer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode

from tmmu.errors import UnsupportedOp
from tmmu.ir.graph import DTYPE_BYTES, STATE
from tmmu.ir.program import ArgumentView, GraphHalf, JointGraph, Output, OutputDelivery, Program, ValueRef
from tmmu.passes.autograd.graph_replayer import (
    DRAWN_AGAIN,
    GraphReplayer,
    form_of,
    is_state_made,
    is_state_taken,
    known_sizes,
)
from tmmu.passes.capture.constants import constant_values
from tmmu.passes.capture.modules import ModuleStack
from tmmu.passes.capture.program import Window
from tmmu.passes.capture.recorder import Recorder
from tmmu.passes.capture.trace import translated
from tmmu.passes.lowering.lower import lower
from tmmu.passes.pipeline import LOWERED, PASSES, run_passes


def _nothing(values: Sequence[torch.Tensor]) -> None:
    """What the operator below does."""


_LIBRARY: Final = torch.library.Library("tmmu", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("hand_out(Tensor[] values) -> ()")  # type: ignore[no-untyped-call]
_LIBRARY.impl("hand_out", _nothing, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
HAND_OUT: Final = torch.ops.tmmu.hand_out.default
"""Reads what leaves a half, and does nothing."""

EARLY: Final = 1 << 16
"""Bytes from which a result leaves when it is made: to stop for less would take longer than the bytes are worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStep:
    """A step as autograd splits it: graphs of ATen operators.

    The first returns ``results`` values for the caller, then all that the second takes by the names of the nodes; what
    else the second takes are gradients of results. ``second`` is ``None`` where nothing is trained.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule | None
    user_outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """The program with its joint graph, and the values of constants by buffer name."""

    program: Program
    constants: Mapping[str, torch.Tensor]


def trace_joint(step: SplitStep, args: Sequence[Any], *, name: str) -> TracedStep:
    """The step for arguments of these shapes, strides and dtypes; a number is taken as what it is.

    Errors: ``UNSUPPORTED_OP``, ``CAPTURE_FAILED``.
    """
    _require_plain(step)
    try:
        return _Tracer(step, args, early=EARLY).trace(name)
    except _Shared:
        return _Tracer(step, args, early=None).trace(name)


class _Shared(Exception):
    """Results that share a storage were handed out apart."""


@dataclass(slots=True)
class _Recorded:
    """A half as it was recorded: its arguments, what it returned, and when what left it."""

    names: list[str | None]
    given: list[Any]
    found: list[Any]
    handed: list[Output | Window]
    deliveries: list[tuple[int, ...]]


class _Tracer:
    """One recording of both halves. Results of ``early`` bytes or more leave when they are made, the others last."""

    def __init__(self, step: SplitStep, args: Sequence[Any], *, early: int | None) -> None:
        self.step, self.args, self.early = step, args, early
        self.modules = ModuleStack()
        self.recorder = Recorder(modules=self.modules, device="cpu")
        self.inputs: list[Window] = []
        self.known = known_sizes(step.forward, args)

    def trace(self, name: str) -> TracedStep:
        """The program in halves."""
        second: _Recorded | None = None
        returned: tuple[int, ...] = ()
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with torch.inference_mode(mode=False), torch.no_grad(), torch._C._DisableAutocast(), fake:
            first = self._first()
            if self.step.backward is not None:
                returned = _returned(self.step.forward, self.step.backward)
                with self.recorder.in_stage("backward"):
                    second = self._second(self.step.backward, first, returned)
        return self._finish(name, first, second, returned)

    def _first(self) -> _Recorded:
        graph, names = self.step.forward, list[str | None]()
        nodes = graph.graph.find_nodes(op="placeholder")
        fakes = [self._declared(node.name, arg, names) for node, arg in zip(nodes, self.args, strict=True)]
        return self._recorded(graph, names, fakes, results=self.step.user_outputs)

    def _second(self, graph: fx.GraphModule, first: _Recorded, returned: tuple[int, ...]) -> _Recorded:
        """On what the first saved, and on fakes of the gradients."""
        names = list[str | None]()
        given = []
        for node, at in zip(graph.graph.find_nodes(op="placeholder"), returned, strict=True):
            names.extend([None] if at >= 0 else [])
            given.append(first.found[at] if at >= 0 else self._declared(node.name, form_of(node, self.known), names))
        return self._recorded(graph, names, given, results=len(_outputs(graph)))

    def _declared(self, name: str, arg: Any, names: list[str | None]) -> Any:
        """A fake of the argument, which is an input of the program from now on."""
        if not isinstance(arg, torch.Tensor):
            names.append(None)
            return arg
        fake = torch.empty_strided(tuple(arg.shape), arg.stride(), dtype=arg.dtype)
        names.append(name)
        self.inputs.append(self.recorder.declare(fake, role="input", name=name))
        return fake

    def _recorded(self, graph: fx.GraphModule, names: list[str | None], given: list[Any], *, results: int) -> _Recorded:
        outputs = _outputs(graph)
        half = _Recorded(names=names, given=given, found=[None] * len(outputs), handed=[], deliveries=[])

        def made(node: fx.Node, value: Any) -> None:
            """A large result is handed out at once."""
            if self.early is None or not isinstance(value, torch.Tensor) or node.op != "call_function":
                return
            places = [at for at in range(results) if outputs[at] is node]
            if places and value.numel() * value.element_size() >= self.early and self._leaves(value):
                self._hand_out(half, places, value)

        with translated(""), self.recorder:
            random = self.recorder.randomness
            random.lost()
            half.found = _listed(GraphReplayer(graph, self.modules, made, self.known, random).run(*given))
            random.settle()
            half.handed = self._handed(graph, half)
            early = {at for places in half.deliveries for at in places}
            last = [at for at, how in enumerate(half.handed) if isinstance(how, Window) and at not in early]
            if last:
                self._hand_out(half, last, *(half.found[at] for at in last))
        _require_together(half)
        return half

    def _hand_out(self, half: _Recorded, places: Sequence[int], *values: torch.Tensor) -> None:
        values = values * len(places) if len(values) == 1 else values
        HAND_OUT(list(values))
        half.deliveries.append(tuple(places))

    def _leaves(self, tensor: torch.Tensor) -> bool:
        """Whether it is the program's own, and no argument's."""
        window = self.recorder.window_of(tensor)
        return all(home.storage != window.storage for home in self.inputs)

    def _handed(self, graph: fx.GraphModule, half: _Recorded) -> list[Output | Window]:
        at = {node: position for position, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
        homes = [self.recorder.window_of(arg) if isinstance(arg, torch.Tensor) else None for arg in half.given]
        return [
            _whole(at[node], leaf) if node in at and isinstance(leaf, torch.Tensor) else self._left(leaf, homes)
            for node, leaf in zip(_outputs(graph), half.found, strict=True)
        ]

    def _left(self, leaf: Any, homes: Sequence[Window | None]) -> Output | Window:
        """A window on an argument that is an input of the program, or one that the program makes."""
        if not isinstance(leaf, torch.Tensor):
            return leaf  # type: ignore[no-any-return]
        window = self.recorder.window_of(leaf)
        if self._leaves(leaf):
            return window
        for position, home in enumerate(homes):
            if home is not None and home.storage == window.storage and home.dtype == window.dtype:
                offset = (window.offset - home.offset) // DTYPE_BYTES[window.dtype]
                return ArgumentView(
                    argument=position, whole=False, shape=window.shape, stride=window.stride, offset=offset
                )
        raise UnsupportedOp("a result is an argument seen as another dtype", fix="clone it in the model")

    def _finish(self, name: str, first: _Recorded, second: _Recorded | None, returned: tuple[int, ...]) -> TracedStep:
        """The recording, lowered; what was handed out, by its values there."""
        traced = self.recorder.finish(name=name, device="cpu", inputs=tuple(self.inputs), outputs=())
        program = lower(traced)
        _require_stateless(program)
        calls = iter([(op, call.args[0]) for op, call in enumerate(program.calls) if call.operator is HAND_OUT])
        joint = JointGraph(
            forward_ops=program.graph.ops.stage.count("forward"),
            user_outputs=self.step.user_outputs,
            forward=_by_value(first, calls),
            backward=None if second is None else _by_value(second, calls),
            residuals=returned,
        )
        program = run_passes(replace(program, joint=joint), PASSES, LOWERED)
        return TracedStep(program=program, constants=constant_values(traced))


def _by_value(half: _Recorded, calls: Iterator[tuple[int, Sequence[ValueRef]]]) -> GraphHalf:
    """What the half hands out, by the values that its calls for that read."""
    handed: list[Any] = list(half.handed)
    deliveries = []
    for places, (op, refs) in zip(half.deliveries, calls, strict=False):
        deliveries.append(OutputDelivery(after=op + 1, outputs=places))
        for at, ref in zip(places, refs, strict=True):
            handed[at] = ref
    return GraphHalf(arguments=tuple(half.names), outputs=tuple(handed), deliveries=tuple(deliveries))


def _require_together(half: _Recorded) -> None:
    """Results on one storage leave at one time, so that they share one afterwards."""
    when: dict[int, int] = {}
    for number, places in enumerate(half.deliveries):
        for at in places:
            window = half.handed[at]
            if isinstance(window, Window) and when.setdefault(window.storage, number) != number:
                raise _Shared


def _returned(first: fx.GraphModule, second: fx.GraphModule) -> tuple[int, ...]:
    """Where the first returns what the second takes: by name, and random states, which have other names, in order."""
    outputs = _outputs(first)
    saved = {node.name: at for at, node in enumerate(outputs) if isinstance(node, fx.Node)}
    states = iter([at for at, node in enumerate(outputs) if isinstance(node, fx.Node) and is_state_made(node)])
    taken = second.graph.find_nodes(op="placeholder")
    return tuple(next(states) if is_state_taken(node) else saved.get(node.name, -1) for node in taken)


def _whole(position: int, tensor: torch.Tensor) -> ArgumentView:
    return ArgumentView(argument=position, whole=True, shape=tuple(tensor.shape), stride=tensor.stride(), offset=0)


def _outputs(graph: fx.GraphModule) -> list[Any]:
    return _listed(graph.graph.output_node().args[0])


def _listed(returned: Any) -> list[Any]:
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def _require_plain(step: SplitStep) -> None:
    for graph in (step.forward, step.backward):
        for node in graph.graph.nodes if graph is not None else ():
            if isinstance(node.target, HigherOrderOperator) and node.target not in DRAWN_AGAIN:
                raise UnsupportedOp(
                    f"{node.target} takes graphs, and is not modelled yet", fix="keep it out of compile"
                )


def _require_stateless(program: Program) -> None:
    if STATE in program.graph.buffers.role:
        raise UnsupportedOp("the graph changes a constant of its own", fix="register it as a buffer of the module")
