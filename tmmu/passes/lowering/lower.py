"""From a program to ``ir.Graph``: views dissolve into windows, mutations become versions of a buffer.

A call is an op when it makes a storage or changes one; a call that only makes another window of a storage is
none. A window gets its value id when something reads it, and is written by the op that last changed the
storage, so every reader names the version that it means.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx
from torch._ops import OpOverload

from tmmu.ir import calls
from tmmu.ir.calls import Call, Ref
from tmmu.ir.graph import Buffers, Graph, Notes, OpNotes, Ops, Values
from tmmu.passes.capture.program import Program, Storage, Window
from tmmu.passes.lowering.overwrites import overwrite_pairs, spans_storage
from tmmu.passes.lowering.phases import label
from tmmu.passes.lowering.saves import mark_saves
from tmmu.passes.operators.flops import count_flops
from tmmu.passes.operators.schema import signature
from tmmu.passes.operators.table import facts_of


@dataclass(slots=True)
class OpDraft:
    """An op being built: later readers still add windows to ``writes``."""

    target: str
    reads: list[int]
    writes: list[int]
    overwrites: tuple[tuple[int, int], ...]
    stage: str
    flops: int
    module: str
    source: str
    sequence: int
    saves: list[int] = field(default_factory=list)
    recompute: bool = False


def lower(program: Program) -> Graph:
    """The program as a graph in which every buffer, window, read and write is explicit."""
    return _Lowering(program).run()


def lower_with_calls(program: Program) -> calls.Program:
    """The same graph, and the call behind each of its ops."""
    lowering = _Lowering(program)
    lowering.calls = []
    graph = lowering.run()
    return calls.Program(graph=graph, calls=tuple(lowering.calls))


class _Lowering:
    """The walk over the nodes; buffers are numbered like storages, values in order of first mention."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.windows: list[Window] = []
        self.ops: list[OpDraft] = []
        self.current: list[dict[Window, int]] = [{} for _ in program.storages]
        self.writer: list[int | None] = [None] * len(program.storages)
        self.initial: set[int] = {i for i, s in enumerate(program.storages) if s.role is not None}
        self.mutated: set[int] = set()
        self.calls: list[Call] | None = None

    def run(self) -> Graph:
        inputs = tuple(dict.fromkeys(self.value(window) for window in self.program.inputs))
        for node in self.program.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, OpOverload):
                self.visit(node)
        outputs = tuple(dict.fromkeys(self.value(window) for window in self.program.outputs))
        mark_saves(self.ops, self.windows, self.initial)
        return self.graph(inputs, outputs)

    def value(self, window: Window) -> int:
        """The id of a window at its storage's current version, made now if nothing named it before."""
        known = self.current[window.storage]
        if window not in known:
            known[window] = len(self.windows)
            self.windows.append(window)
            writer = self.writer[window.storage]
            if writer is not None:
                self.ops[writer].writes.append(known[window])
        return known[window]

    def visit(self, node: fx.Node) -> None:
        results = [window for window in node.meta["windows"] if window is not None]
        fresh = [w for w in results if w.storage not in self.initial and self.writer[w.storage] is None]
        changed: tuple[Window, ...] = node.meta["mutates"]
        if not fresh and not changed and results:
            return
        reads = [self.value(window) for window in _arguments(node)]
        reads += [self.value(self._whole(window)) for window in changed if not self._spans(window)]
        reads = list(dict.fromkeys(reads))
        self.ops.append(self._draft(node, reads))
        given = None if self.calls is None else self._given(node)
        self._write(fresh, changed)
        if self.calls is not None and given is not None:
            named = tuple(None if w is None else self.value(w) for w in node.meta["windows"])
            self.calls.append(Call(operator=node.target, args=given[0], kwargs=given[1], results=named))
        self.ops[-1].overwrites = self._pairs(node, reads)

    def _draft(self, node: fx.Node, reads: list[int]) -> OpDraft:
        meta = node.meta
        return OpDraft(
            target=signature(node.target).name,
            reads=reads,
            writes=[],
            overwrites=(),
            stage=meta["stage"],
            flops=count_flops(node),
            module=meta["module"],
            source=meta["source"],
            sequence=meta["sequence"],
        )

    def _given(self, node: fx.Node) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
        """The arguments of the call, tensors by their values before it."""

        def named(argument: fx.Node) -> Ref:
            return Ref(self.value(argument.meta["windows"][0]))

        kwargs = {key: fx.node.map_aggregate(value, _by_value(named)) for key, value in node.kwargs.items()}
        return tuple(fx.node.map_aggregate(arg, _by_value(named)) for arg in node.args), tuple(kwargs.items())

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

    def _pairs(self, node: fx.Node, reads: list[int]) -> tuple[tuple[int, int], ...]:
        name = self.ops[-1].target
        if not facts_of(name).elementwise or node.meta["mutates"]:
            return ()
        sizes = self.program.storages
        return overwrite_pairs(self.ops[-1].writes, reads, self.windows, lambda s: sizes[s].bytes, self.initial)

    def _spans(self, window: Window) -> bool:
        """Whether the window is dense and covers its whole storage."""
        return spans_storage(window, self.program.storages[window.storage].bytes)

    def _whole(self, window: Window) -> Window:
        """The whole storage as bytes: what a partial write leaves alone must still be there."""
        size = self.program.storages[window.storage].bytes
        for known in self.current[window.storage]:
            if spans_storage(known, size):
                return known
        return Window(window.storage, 0, (size,), (1,), "uint8")

    def graph(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Graph:
        program, ops, windows = self.program, self.ops, self.windows
        made = _first_stage(ops, windows)
        roles = tuple(self._role(i, storage, made) for i, storage in enumerate(program.storages))
        graph = Graph(
            target=program.device,
            buffers=Buffers(bytes=tuple(s.bytes for s in program.storages), role=roles),
            values=Values(
                buffer=tuple(w.storage for w in windows),
                offset=tuple(w.offset for w in windows),
                shape=tuple(w.shape for w in windows),
                stride=tuple(w.stride for w in windows),
                dtype=tuple(w.dtype for w in windows),
            ),
            ops=Ops(
                target=tuple(op.target for op in ops),
                reads=tuple(tuple(op.reads) for op in ops),
                writes=tuple(tuple(op.writes) for op in ops),
                overwrites=tuple(op.overwrites for op in ops),
                saves=tuple(tuple(op.saves) for op in ops),
                recompute=tuple(op.recompute for op in ops),
                stage=tuple(op.stage for op in ops),
            ),
            inputs=inputs,
            outputs=outputs,
            notes=_notes(program, ops, windows),
        )
        return label(graph)

    def _role(self, index: int, storage: Storage, made: dict[int, str]) -> str:
        if storage.role is None:
            return "activation" if made.get(index, "forward") == "forward" else "gradient"
        if storage.role in ("parameter", "constant") and index in self.mutated:
            return "state"
        return storage.role


def _by_value(named: Callable[[fx.Node], Ref]) -> Callable[[Any], Any]:
    return lambda argument: named(argument) if isinstance(argument, fx.Node) else argument


def _arguments(node: fx.Node) -> list[Window]:
    """The windows that the call is given, in order."""
    found: list[Window] = []

    def visit(argument: fx.Node) -> fx.Node:
        windows = argument.meta["windows"]
        if len(windows) == 1 and windows[0] is not None:
            found.append(windows[0])
        return argument

    fx.node.map_arg((node.args, node.kwargs), visit)
    return found


def _first_stage(ops: list[OpDraft], windows: list[Window]) -> dict[int, str]:
    """The stage of the op that first writes each buffer."""
    first: dict[int, str] = {}
    for op in ops:
        for value in op.writes:
            first.setdefault(windows[value].storage, op.stage)
    return first


def _notes(program: Program, ops: list[OpDraft], windows: list[Window]) -> Notes:
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
    )
