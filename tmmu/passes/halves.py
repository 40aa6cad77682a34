"""From the two graphs of a training step, as autograd splits it, to one program in two halves.

Both graphs run once, one after the other, on fake tensors under the recorder; what the first saves flows into the
second as it is, so that the recording is one step, forward and backward, in one order. At the end of each half a
call that does nothing reads what the half hands out: until then it must be there, and no longer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode

from tmmu.errors import UnsupportedOp
from tmmu.ir.calls import Program, Ref
from tmmu.ir.graph import DTYPE_BYTES, STATE
from tmmu.ir.halves import Given, Halves, Handed
from tmmu.passes.capture import translated
from tmmu.passes.constants import constant_values
from tmmu.passes.lower import lower_with_calls
from tmmu.passes.modules import ModuleStack
from tmmu.passes.program import Window
from tmmu.passes.recorder import Recorder
from tmmu.passes.sources import display_name


def _nothing(values: Sequence[torch.Tensor]) -> None:
    """What the operator below does."""


_LIBRARY: Final = torch.library.Library("tmmu", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("hand_out(Tensor[] values) -> ()")  # type: ignore[no-untyped-call]
_LIBRARY.impl("hand_out", _nothing, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
HAND_OUT: Final = torch.ops.tmmu.hand_out.default
"""Reads what leaves a half, and does nothing."""

_LINE: Final = re.compile(r'File "([^"]+)", line (\d+)')
_NOWHERE: Final = "autograd"
"""The source of what no line of the user's stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step as autograd splits it: graphs of ATen operators.

    The first returns ``results`` values for the caller, then all that the second takes by the names of the nodes; what
    else the second takes are gradients of results. ``second`` is ``None`` where nothing is trained.
    """

    first: fx.GraphModule
    second: fx.GraphModule | None
    results: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The halves, and the values of constants by buffer name."""

    halves: Halves
    constants: Mapping[str, torch.Tensor]


def trace_halves(step: Step, args: Sequence[Any], *, name: str) -> Traced:
    """The step for arguments of these shapes, strides and dtypes; a number is taken as what it is.

    Errors: ``UNSUPPORTED_OP``, ``CAPTURE_FAILED``.
    """
    _require_plain(step)
    tracer = _Tracer(args)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.inference_mode(mode=False), torch.no_grad(), torch._C._DisableAutocast(), fake:
        tracer.run_first(step)
        if step.second is not None:
            tracer.run_second(step, step.second)
    return tracer.finish(step, name)


class _Tracer:
    """One recording, and what each half was given and hands out."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.args = args
        self.modules = ModuleStack()
        self.recorder = Recorder(modules=self.modules, device="cpu")
        self.names: list[str | None] = []
        self.inputs: list[Window] = []
        self.first: list[Any] = []
        self.second: list[Any] = []
        self.returned: list[int] = []
        self.tangents: list[str | None] = []
        self.handed: list[tuple[Handed | Window, ...]] = []

    def run_first(self, step: Step) -> None:
        """The first half, on fakes of the arguments."""
        nodes = step.first.graph.find_nodes(op="placeholder")
        fakes = [self._declared(node.name, arg, self.names) for node, arg in zip(nodes, self.args, strict=True)]
        self.first = self._run(step.first, fakes)

    def run_second(self, step: Step, second: fx.GraphModule) -> None:
        """The second half, on what the first saved and on fakes of the gradients."""
        saved = {node.name: at for at, node in enumerate(_outputs(step.first)) if isinstance(node, fx.Node)}
        known = _known_sizes(step.first, self.args)
        given: list[Any] = []
        for node in second.graph.find_nodes(op="placeholder"):
            at = saved.get(node.name, -1)
            self.returned.append(at)
            if at >= 0:
                given.append(self.first[at])
                self.tangents.append(None)
            else:
                given.append(self._declared(node.name, _sized(node, known), self.tangents))
        with self.recorder.in_stage("backward"):
            self.second = self._run(second, given)

    def _declared(self, name: str, arg: Any, names: list[str | None]) -> Any:
        """A fake of the argument, which is an input of the program from now on."""
        if not isinstance(arg, torch.Tensor):
            names.append(None)
            return arg
        fake = torch.empty_strided(tuple(arg.shape), arg.stride(), dtype=arg.dtype)
        names.append(name)
        self.inputs.append(self.recorder.declare(fake, role="input", name=name))
        return fake

    def _run(self, graph: fx.GraphModule, given: list[Any]) -> list[Any]:
        with translated(""), self.recorder:
            found = _Following(graph, self.modules).run(*given)
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        homes = [self._window(arg) for arg in given]
        nodes = graph.graph.find_nodes(op="placeholder")
        at = {node: position for position, node in enumerate(nodes)}
        handed = [
            _whole(at[node], leaf) if node in at and isinstance(leaf, torch.Tensor) else self._handed(leaf, homes)
            for node, leaf in zip(_outputs(graph), found, strict=True)
        ]
        leaving = [leaf for leaf, how in zip(found, handed, strict=True) if isinstance(how, Window)]
        if leaving:
            with self.recorder:
                HAND_OUT(leaving)
        self.handed.append(tuple(handed))
        return found

    def _window(self, value: Any) -> Window | None:
        return self.recorder.window_of(value) if isinstance(value, torch.Tensor) else None

    def _handed(self, leaf: Any, homes: Sequence[Window | None]) -> Handed | Window:
        """A window on an argument that is an input of the program, or one that the program makes."""
        if not isinstance(leaf, torch.Tensor):
            return leaf  # type: ignore[no-any-return]
        window = self.recorder.window_of(leaf)
        inputs = {home.storage for home in self.inputs}
        if window.storage not in inputs:
            return window
        for position, home in enumerate(homes):
            if home is not None and home.storage == window.storage and home.dtype == window.dtype:
                offset = (window.offset - home.offset) // DTYPE_BYTES[window.dtype]
                return Given(position=position, whole=False, shape=window.shape, stride=window.stride, offset=offset)
        raise UnsupportedOp("a result is an argument seen as another dtype", fix="clone it in the model")

    def finish(self, step: Step, name: str) -> Traced:
        """The recording, lowered; what was handed out, by its values there."""
        last = tuple(dict.fromkeys(one for one in self.handed[-1] if isinstance(one, Window)))
        traced = self.recorder.finish(name=name, device="cpu", inputs=tuple(self.inputs), outputs=last)
        program = lower_with_calls(traced)
        _require_stateless(program)
        border = program.graph.ops.stage.count("forward")
        first = _by_value(self.handed[0], program, border)
        second = _by_value(self.handed[1], program, len(program.calls)) if step.second is not None else ()
        halves = Halves(
            program=program,
            border=border,
            arguments=tuple(self.names),
            first=first,
            results=step.results,
            returned=tuple(self.returned),
            tangents=tuple(self.tangents),
            second=second,
        )
        return Traced(halves=halves, constants=constant_values(traced))


class _Following(fx.Interpreter):
    """Runs a graph, and tells the recorder which module and line each node comes from."""

    def __init__(self, graph: fx.GraphModule, modules: ModuleStack) -> None:
        super().__init__(graph)
        self._modules = modules

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        stack = n.meta.get("nn_module_stack") or n.meta.get("fwd_nn_module_stack") or {}
        path = next(reversed(list(stack.values())))[0] if stack else ""
        lines = _LINE.findall(n.meta.get("stack_trace") or "")
        self._modules.path = _readable(str(path))
        self._modules.source = f"{display_name(lines[-1][0], '')}:{lines[-1][1]}" if lines else _NOWHERE
        return super().run_node(n)


def _readable(path: str) -> str:
    """``L['self']._modules['0'].weight`` as ``0.weight``."""
    return path.removeprefix("L['self'].").replace("_modules['", "").replace("']", "").removeprefix("L['self")


def _by_value(handed: Sequence[Handed | Window], program: Program, end: int) -> tuple[Handed, ...]:
    """Windows by the values that the half's last call reads."""
    wanted = sum(isinstance(one, Window) for one in handed)
    refs = iter(program.calls[end - 1].args[0] if wanted else ())
    return tuple(_next_ref(refs) if isinstance(one, Window) else one for one in handed)


def _next_ref(refs: Any) -> Ref:
    ref: Ref = next(refs)
    return ref


def _whole(position: int, tensor: torch.Tensor) -> Given:
    return Given(position=position, whole=True, shape=tuple(tensor.shape), stride=tensor.stride(), offset=0)


def _outputs(graph: fx.GraphModule) -> list[Any]:
    returned = graph.graph.output_node().args[0]
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def _require_plain(step: Step) -> None:
    for graph in (step.first, step.second):
        for node in graph.graph.nodes if graph is not None else ():
            if isinstance(node.target, HigherOrderOperator):
                raise UnsupportedOp(
                    f"{node.target} takes graphs, and is not modelled yet", fix="keep it out of compile"
                )


def _require_stateless(program: Program) -> None:
    if STATE in program.graph.buffers.role:
        raise UnsupportedOp("the graph changes a constant of its own", fix="register it as a buffer of the module")


def _known_sizes(graph: fx.GraphModule, args: Sequence[Any]) -> dict[Any, int]:
    """What each free symbol of the graph is for these arguments."""
    known: dict[Any, int] = {}
    for node, arg in zip(graph.graph.find_nodes(op="placeholder"), args, strict=True):
        form = node.meta.get("val")
        pairs = zip(form.shape, arg.shape, strict=True) if isinstance(form, torch.Tensor) else ((form, arg),)
        for symbolic, size in pairs:
            if isinstance(symbolic, torch.SymInt) and symbolic.node.expr.is_Symbol:
                known[symbolic.node.expr] = int(size)
    return known


def _sized(node: fx.Node, known: Mapping[Any, int]) -> Any:
    """The form of a gradient, its sizes made numbers."""

    def number(size: Any) -> int:
        return int(size.node.expr.xreplace(known)) if isinstance(size, torch.SymInt) else int(size)

    form = node.meta["val"]
    if not isinstance(form, torch.Tensor):
        return number(form)
    shape, stride = tuple(map(number, form.shape)), tuple(map(number, form.stride()))
    return torch.empty_strided(shape, stride, dtype=form.dtype)
