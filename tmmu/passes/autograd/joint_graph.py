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

from tmmu.errors import UnsupportedOp
from tmmu.ir.graph import DTYPE_BYTES, STATE
from tmmu.ir.program import ArgumentView, GraphHalf, JointGraph, Output, OutputDelivery, Program, ValueRef
from tmmu.passes.autograd.graph_replayer import (
    RANDOM_STATE_CALLS,
    GraphReplayer,
    empty_like_node,
    is_restored_random_state,
    is_saved_random_state,
    symbol_sizes,
)
from tmmu.passes.capture.constants import constant_values
from tmmu.passes.capture.failures.translate import translate_errors
from tmmu.passes.capture.modules import ModuleStack
from tmmu.passes.capture.program import Window
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.lowering.lower import lower
from tmmu.passes.pipeline import LOWERED, PASSES, run_passes
from tmmu.torch_private import DisableAutocast, FakeTensorMode, HigherOrderOperator, compile_lock


def _hand_out_kernel(values: Sequence[torch.Tensor]) -> None:
    """What the operator below does."""


_LIBRARY: Final = torch.library.Library("tmmu", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("hand_out(Tensor[] values) -> ()")  # type: ignore[no-untyped-call]
_LIBRARY.impl("hand_out", _hand_out_kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
for _lazy_bit in ("Conjugate", "Negative", "ZeroTensor"):  # what leaves keeps its bits
    _LIBRARY.impl("hand_out", torch.library.fallthrough_kernel, _lazy_bit)  # type: ignore[no-untyped-call]
HAND_OUT: Final = torch.ops.tmmu.hand_out.default
"""Reads what leaves a half, and does nothing."""

EARLY_BYTES: Final = 1 << 16
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

    No other thread compiles meanwhile: the node that torch's interpreter is at is one for all threads, and AOTAutograd
    insists on its own. Errors: ``UNSUPPORTED_OP``, ``CAPTURE_FAILED``.
    """
    _require_plain(step)
    with compile_lock:
        try:
            return _StepTracer(step, args, early_bytes=EARLY_BYTES).trace(name)
        except _SharedStorage:
            return _StepTracer(step, args, early_bytes=None).trace(name)


class _SharedStorage(Exception):
    """Results that share a storage were handed out apart."""


@dataclass(slots=True)
class _RecordedHalf:
    """A half as it was recorded: its arguments, what it returned, and when what left it."""

    names: list[str | None]
    arguments: list[Any]
    outputs: list[Any]
    output_windows: list[Output | Window]
    deliveries: list[tuple[int, ...]]
    objects: tuple[int, ...]


class _StepTracer:
    """One recording of both halves. Results of ``early`` bytes or more leave when they are made, the others last."""

    def __init__(self, step: SplitStep, args: Sequence[Any], *, early_bytes: int | None) -> None:
        self.step, self.args, self.early_bytes = step, args, early_bytes
        self.modules = ModuleStack()
        self.recorder = Recorder(modules=self.modules, device="cpu")
        self.inputs: list[Window] = []
        self.symbol_sizes = symbol_sizes(step.forward, args)

    def trace(self, name: str) -> TracedStep:
        """The program in halves."""
        backward: _RecordedHalf | None = None
        residuals: tuple[int, ...] = ()
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with torch.inference_mode(mode=False), torch.no_grad(), DisableAutocast(), fake:
            forward = self._record_forward()
            if self.step.backward is not None:
                residuals = _residual_positions(self.step.forward, self.step.backward)
                with self.recorder.in_stage("backward"):
                    backward = self._record_backward(self.step.backward, forward, residuals)
        return self._finish(name, forward, backward, residuals)

    def _record_forward(self) -> _RecordedHalf:
        graph, names = self.step.forward, list[str | None]()
        nodes = graph.graph.find_nodes(op="placeholder")
        fakes = [self._declare(node.name, arg, names) for node, arg in zip(nodes, self.args, strict=True)]
        return self._record(graph, names, fakes, early_outputs=self.step.user_outputs)

    def _record_backward(
        self, graph: fx.GraphModule, forward: _RecordedHalf, residuals: tuple[int, ...]
    ) -> _RecordedHalf:
        """On what the first saved, and on fakes of the gradients."""
        names = list[str | None]()
        arguments = []
        for node, output in zip(graph.graph.find_nodes(op="placeholder"), residuals, strict=True):
            names.extend([None] if output >= 0 else [])
            arguments.append(
                forward.outputs[output]
                if output >= 0
                else self._declare(node.name, empty_like_node(node, self.symbol_sizes), names)
            )
        return self._record(graph, names, arguments, early_outputs=len(_outputs(graph)))

    def _declare(self, name: str, arg: Any, names: list[str | None]) -> Any:
        """A fake of the argument, which is an input of the program from now on."""
        if not isinstance(arg, torch.Tensor):
            names.append(None)
            return arg
        fake = torch.empty_strided(tuple(arg.shape), arg.stride(), dtype=arg.dtype)
        names.append(name)
        self.inputs.append(self.recorder.declare(fake, role="input", name=name))
        return fake

    def _record(
        self, graph: fx.GraphModule, names: list[str | None], arguments: list[Any], *, early_outputs: int
    ) -> _RecordedHalf:
        outputs = _outputs(graph)
        half = _RecordedHalf(
            names=names,
            arguments=arguments,
            outputs=[None] * len(outputs),
            output_windows=[],
            deliveries=[],
            objects=_first_positions(outputs),
        )

        def deliver_early(node: fx.Node, value: Any) -> None:
            """A large result is handed out at once."""
            if self.early_bytes is None or not isinstance(value, torch.Tensor) or node.op != "call_function":
                return
            positions = [position for position in range(early_outputs) if outputs[position] is node]
            if positions and value.numel() * value.element_size() >= self.early_bytes and self._is_own_result(value):
                self._hand_out(half, positions, value)

        with translate_errors(""), self.recorder:
            random = self.recorder.randomness
            random.forget_state()
            half.outputs = _as_list(
                GraphReplayer(graph, self.modules, deliver_early, self.symbol_sizes, random).run(*arguments)
            )
            random.apply_pending()
            half.output_windows = self._output_windows(graph, half)
            early = {position for positions in half.deliveries for position in positions}
            last = [
                position
                for position, window in enumerate(half.output_windows)
                if isinstance(window, Window) and position not in early
            ]
            if last:
                self._hand_out(half, last, *(half.outputs[position] for position in last))
        _require_joint_delivery(half)
        return half

    def _hand_out(self, half: _RecordedHalf, positions: Sequence[int], *values: torch.Tensor) -> None:
        values = values * len(positions) if len(values) == 1 else values
        HAND_OUT(list(values))
        half.deliveries.append(tuple(positions))

    def _is_own_result(self, tensor: torch.Tensor) -> bool:
        """Whether it is the program's own, and no argument's."""
        window = self.recorder.window_of(tensor)
        return all(input_window.storage != window.storage for input_window in self.inputs)

    def _output_windows(self, graph: fx.GraphModule, half: _RecordedHalf) -> list[Output | Window]:
        position_of = {node: position for position, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
        argument_windows = [
            self.recorder.window_of(arg) if isinstance(arg, torch.Tensor) else None for arg in half.arguments
        ]
        return [
            _whole_argument(position_of[node], leaf)
            if node in position_of and isinstance(leaf, torch.Tensor)
            else self._output_of(leaf, argument_windows)
            for node, leaf in zip(_outputs(graph), half.outputs, strict=True)
        ]

    def _output_of(self, leaf: Any, argument_windows: Sequence[Window | None]) -> Output | Window:
        """A window on an argument that is an input of the program, or one that the program makes."""
        if not isinstance(leaf, torch.Tensor):
            return leaf  # type: ignore[no-any-return]
        window = self.recorder.window_of(leaf)
        if self._is_own_result(leaf):
            return window
        for position, argument in enumerate(argument_windows):
            if argument is not None and argument.storage == window.storage and argument.dtype == window.dtype:
                offset = (window.offset - argument.offset) // DTYPE_BYTES[window.dtype]
                return ArgumentView(
                    argument=position,
                    whole=False,
                    shape=window.shape,
                    stride=window.stride,
                    offset=offset,
                    conj=window.conj,
                    neg=window.neg,
                )
        raise UnsupportedOp("a result is an argument seen as another dtype", fix="clone it in the model")

    def _finish(
        self, name: str, forward: _RecordedHalf, backward: _RecordedHalf | None, residuals: tuple[int, ...]
    ) -> TracedStep:
        """The recording, lowered; what was handed out, by its values there."""
        captured = self.recorder.finish(name=name, device="cpu", inputs=tuple(self.inputs), outputs=())
        program = lower(captured)
        _require_stateless(program)
        calls = iter([(op, call.args[0]) for op, call in enumerate(program.calls) if call.operator is HAND_OUT])
        joint = JointGraph(
            forward_ops=program.graph.ops.stage.count("forward"),
            user_outputs=self.step.user_outputs,
            forward=_graph_half(forward, calls),
            backward=None if backward is None else _graph_half(backward, calls),
            residuals=residuals,
        )
        program = run_passes(replace(program, joint=joint), PASSES, LOWERED)
        return TracedStep(program=program, constants=constant_values(captured))


def _graph_half(half: _RecordedHalf, calls: Iterator[tuple[int, Sequence[ValueRef]]]) -> GraphHalf:
    """What the half hands out, by the values that its calls for that read."""
    outputs: list[Any] = list(half.output_windows)
    deliveries = []
    for positions, (op, refs) in zip(half.deliveries, calls, strict=False):
        deliveries.append(OutputDelivery(after=op + 1, outputs=positions))
        for position, ref in zip(positions, refs, strict=True):
            outputs[position] = ref
    return GraphHalf(
        arguments=tuple(half.names), outputs=tuple(outputs), deliveries=tuple(deliveries), objects=half.objects
    )


def _require_joint_delivery(half: _RecordedHalf) -> None:
    """Results on one storage leave at one time, so that they share one afterwards."""
    delivery_of: dict[int, int] = {}
    for number, positions in enumerate(half.deliveries):
        for position in positions:
            window = half.output_windows[position]
            if isinstance(window, Window) and delivery_of.setdefault(window.storage, number) != number:
                raise _SharedStorage


def _residual_positions(forward: fx.GraphModule, backward: fx.GraphModule) -> tuple[int, ...]:
    """Where the first returns what the second takes: by name, and random states, which have other names, in order."""
    outputs = _outputs(forward)
    position_of = {node.name: position for position, node in enumerate(outputs) if isinstance(node, fx.Node)}
    states = iter(
        [position for position, node in enumerate(outputs) if isinstance(node, fx.Node) and is_saved_random_state(node)]
    )
    arguments = backward.graph.find_nodes(op="placeholder")
    return tuple(
        next(states) if is_restored_random_state(node) else position_of.get(node.name, -1) for node in arguments
    )


def _whole_argument(position: int, tensor: torch.Tensor) -> ArgumentView:
    return ArgumentView(argument=position, whole=True, shape=tuple(tensor.shape), stride=tensor.stride(), offset=0)


def _outputs(graph: fx.GraphModule) -> list[Any]:
    return _as_list(graph.graph.output_node().args[0])


def _first_positions(outputs: Sequence[Any]) -> tuple[int, ...]:
    """Per output, where the same node stands first: what is one node to autograd is one object to the caller."""
    first: dict[fx.Node, int] = {}
    return tuple(
        first.setdefault(node, position) if isinstance(node, fx.Node) else position
        for position, node in enumerate(outputs)
    )


def _as_list(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _require_plain(step: SplitStep) -> None:
    for graph in (step.forward, step.backward):
        for node in graph.graph.nodes if graph is not None else ():
            if isinstance(node.target, HigherOrderOperator) and node.target not in RANDOM_STATE_CALLS:
                raise UnsupportedOp(
                    f"{node.target} takes graphs, and is not modelled yet", fix="keep it out of compile"
                )


def _require_stateless(program: Program) -> None:
    if STATE in program.graph.buffers.role:
        raise UnsupportedOp("the graph changes a constant of its own", fix="register it as a buffer of the module")
