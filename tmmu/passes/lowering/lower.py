"""From a captured program to a graph and its calls: views dissolve into windows, mutations become versions of a buffer.

A call is an op when it makes a storage or changes one; a call that only makes another window of a storage is none. A
window gets its value id when something reads it, and is written by the op that last changed the storage, so every
reader names the version that it means. State of the walk: per storage, the op that made its current version and the
values on that version; both change together, when an op writes.

What the graph says beyond that is left to the passes of ``tmmu.passes.pipeline``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import fx

from tmmu.errors import UnsupportedOp
from tmmu.ir.graph import Buffers, Graph, Notes, OpNotes, Ops, Values
from tmmu.ir.ids import BufferId, Bytes, ValueId
from tmmu.ir.program import Call, Program, ValueRef
from tmmu.passes.capture import program as captured
from tmmu.passes.capture.program import Storage, Window
from tmmu.passes.lowering.mark_overwrites import spans_storage
from tmmu.passes.operators.flops import count_flops
from tmmu.passes.operators.schema import signature
from tmmu.torch_private import OpOverload


@dataclass(slots=True)
class OpDraft:
    """An op being built: later readers still add windows to ``writes``."""

    target: str
    reads: list[ValueId]
    writes: list[ValueId]
    stage: str
    flops: int
    module: str
    source: str


def lower(program: captured.CapturedProgram) -> Program:
    """The program as a graph in which every buffer, window, read and write is explicit, with the call of each op."""
    return _Lowering(program).run()


class _Lowering:
    """The walk over the nodes; buffers are numbered like storages, values in order of first mention."""

    def __init__(self, program: captured.CapturedProgram) -> None:
        self.program = program
        self.windows: list[Window] = []
        self.ops: list[OpDraft] = []
        self.current: list[dict[Window, ValueId]] = [{} for _ in program.storages]
        self.writer: list[int | None] = [None] * len(program.storages)
        self.initial: set[int] = {i for i, s in enumerate(program.storages) if s.role is not None}
        self.mutated: set[int] = set()
        self.calls: list[Call] = []

    def run(self) -> Program:
        inputs = tuple(dict.fromkeys(self.value(window) for window in self.program.inputs))
        for node in self.program.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, OpOverload):
                self.visit(node)
        outputs = tuple(dict.fromkeys(self.value(window) for window in self.program.outputs))
        graph = self.graph(inputs, outputs)
        return Program(graph=graph, calls=tuple(self.calls), routings=self.program.routings)

    def value(self, window: Window) -> ValueId:
        """The id of a window at its storage's current version, made now if nothing named it before.

        Lazy bits are the call's: a window has the same value with them and without.
        """
        window = window.in_memory
        current = self.current[window.storage]
        if window not in current:
            current[window] = ValueId(len(self.windows))
            self.windows.append(window)
            writer = self.writer[window.storage]
            if writer is not None:
                self.ops[writer].writes.append(current[window])
        return current[window]

    def visit(self, node: fx.Node) -> None:
        results = [window for window in node.meta["windows"] if window is not None]
        fresh = [w for w in results if w.storage not in self.initial and self.writer[w.storage] is None]
        _require_in_memory(node, fresh)
        changed: tuple[Window, ...] = node.meta["mutates"]
        if not fresh and not changed and results:
            return
        reads = [self.value(window) for window in _argument_windows(node)]
        reads += [self.value(self._whole(window)) for window in changed if not self._spans(window)]
        reads = list(dict.fromkeys(reads))
        self.ops.append(self._draft(node, reads))
        args, kwargs = self._arguments(node)
        self._write(fresh, changed)
        call = Call(
            operator=node.target,
            args=args,
            kwargs=kwargs,
            results=tuple(None if window is None else self.value(window) for window in node.meta["windows"]),
            sequence=node.meta["sequence"],
            origin=len(self.calls),
            switches=node.meta.get("switches", ()),
            numbers_vary=node.meta.get("numbers_vary", False),
        )
        self.calls.append(call)

    def _draft(self, node: fx.Node, reads: list[ValueId]) -> OpDraft:
        meta = node.meta
        return OpDraft(
            target=signature(node.target).name,
            reads=reads,
            writes=[],
            stage=meta["stage"],
            flops=count_flops(node),
            module=meta["module"],
            source=meta["source"],
        )

    def _arguments(self, node: fx.Node) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
        """The arguments of the call, tensors by their values before it."""

        def to_ref(argument: fx.Node) -> ValueRef:
            window: Window = argument.meta["windows"][0]
            return ValueRef(self.value(window), window.conj, window.neg)

        kwargs = {key: fx.node.map_aggregate(value, _by_value(to_ref)) for key, value in node.kwargs.items()}
        return tuple(fx.node.map_aggregate(arg, _by_value(to_ref)) for arg in node.args), tuple(kwargs.items())

    def _write(self, fresh: list[Window], changed: tuple[Window, ...]) -> None:
        """New versions of what the op changed, first versions of what it made; then the values on them."""
        op = len(self.ops) - 1
        for window in (*fresh, *changed):
            if self.writer[window.storage] != op:
                self.current[window.storage] = {}
                self.writer[window.storage] = op
        self.mutated.update(window.storage for window in changed)
        for window in (*fresh, *changed):
            self.value(window)

    def _spans(self, window: Window) -> bool:
        """Whether the window is dense and covers its whole storage."""
        return spans_storage(window, self.program.storages[window.storage].bytes)

    def _whole(self, window: Window) -> Window:
        """The whole storage as bytes: what a partial write leaves alone must still be there."""
        size = self.program.storages[window.storage].bytes
        for window_seen in self.current[window.storage]:
            if spans_storage(window_seen, size):
                return window_seen
        return Window(window.storage, 0, (size,), (1,), "uint8")

    def graph(self, inputs: tuple[ValueId, ...], outputs: tuple[ValueId, ...]) -> Graph:
        program, ops, windows = self.program, self.ops, self.windows
        first_stage = _first_stage(ops, windows)
        roles = tuple(self._role(i, storage, first_stage) for i, storage in enumerate(program.storages))
        return Graph(
            target=program.device,
            buffers=Buffers(bytes=cast("tuple[Bytes, ...]", tuple(s.bytes for s in program.storages)), role=roles),
            values=Values(
                buffer=cast("tuple[BufferId, ...]", tuple(w.storage for w in windows)),
                offset=cast("tuple[Bytes, ...]", tuple(w.offset for w in windows)),
                shape=tuple(w.shape for w in windows),
                stride=tuple(w.stride for w in windows),
                dtype=tuple(w.dtype for w in windows),
            ),
            ops=Ops(
                target=tuple(op.target for op in ops),
                reads=tuple(tuple(op.reads) for op in ops),
                writes=tuple(tuple(op.writes) for op in ops),
                overwrites=((),) * len(ops),
                saves=((),) * len(ops),
                recompute=(False,) * len(ops),
                stage=tuple(op.stage for op in ops),
            ),
            inputs=inputs,
            outputs=outputs,
            notes=_notes(program, ops, windows),
        )

    def _role(self, index: int, storage: Storage, first_stage: dict[int, str]) -> str:
        if storage.role is None:
            return "activation" if first_stage.get(index, "forward") == "forward" else "gradient"
        if storage.role in ("parameter", "constant") and index in self.mutated:
            return "state"
        return storage.role


def _by_value(named: Callable[[fx.Node], ValueRef]) -> Callable[[Any], Any]:
    return lambda argument: named(argument) if isinstance(argument, fx.Node) else argument


def _require_in_memory(node: fx.Node, fresh: Sequence[Window]) -> None:
    """Refuse a call that makes a storage and hands it out conjugated or negated: a copy would have other bytes."""
    if any(window.is_lazy for window in fresh):
        raise UnsupportedOp(
            f"{signature(node.target).name} at {node.meta['source']} makes a tensor with a conjugate or negative bit",
            fix="let it make the elements themselves, as resolve_conj and resolve_neg do",
        )


def _argument_windows(node: fx.Node) -> list[Window]:
    """The windows that the call is given, in order."""
    argument_windows: list[Window] = []

    def visit(argument: fx.Node) -> fx.Node:
        windows = argument.meta["windows"]
        if len(windows) == 1 and windows[0] is not None:
            argument_windows.append(windows[0])
        return argument

    fx.node.map_arg((node.args, node.kwargs), visit)
    return argument_windows


def _first_stage(ops: list[OpDraft], windows: list[Window]) -> dict[int, str]:
    """The stage of the op that first writes each buffer."""
    first: dict[int, str] = {}
    for op in ops:
        for value in op.writes:
            first.setdefault(windows[value].storage, op.stage)
    return first


def _notes(program: captured.CapturedProgram, ops: list[OpDraft], windows: list[Window]) -> Notes:
    names = [storage.name for storage in program.storages]
    for op in ops:
        for value in op.writes:
            storage = windows[value].storage
            names[storage] = names[storage] or f"{op.module or op.stage}:{op.target}"
    blank = ("unknown",) * len(ops)
    return Notes(
        name=program.name,
        buffers=tuple(names),
        ops=OpNotes(
            phase=blank,
            modality=blank,
            flops=tuple(op.flops for op in ops),
            module=tuple(op.module for op in ops),
            source=tuple(op.source for op in ops),
        ),
        eager=program.eager,
    )
