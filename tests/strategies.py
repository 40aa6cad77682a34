"""Legal random graphs: a builder that keeps the IR's conventions, and a hypothesis strategy over it.

``graphs()`` is the strategy; ``random_graph(pick, ops=n)`` is the same generator driven by any source of
choices (``seeded(7)`` for a fixed one), for sizes that hypothesis does not reach.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from hypothesis import strategies as st

from tmmu.ir.graph import DTYPE_BYTES, PERSISTENT_ROLES, Buffers, Graph, Notes, OpNotes, Ops, Values, blank_notes

Window: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], str]
"""(offset in bytes, shape, stride in elements, dtype)"""
Place: TypeAlias = tuple[int, Window]
"""(buffer, window)"""
Pick: TypeAlias = Callable[[int], int]
"""A choice below its argument."""


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    stride = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        stride[axis] = stride[axis + 1] * max(1, shape[axis + 1])
    return tuple(stride)


@dataclass
class OpRow:
    target: str
    reads: list[int]
    writes: list[int]
    overwrites: list[tuple[int, int]]
    saves: list[int]
    recompute: bool
    stage: str


@dataclass
class Builder:
    """Builds a graph in program order; keeps versions, so that every read window is written by the right op."""

    size: list[int] = field(default_factory=list)
    role: list[str] = field(default_factory=list)
    whole: list[Window] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    maker: list[int | None] = field(default_factory=list)
    values: dict[tuple[int, int, Window], int] = field(default_factory=dict)
    ops: list[OpRow] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)

    def buffer(self, role: str, shape: Sequence[int] = (8,), dtype: str = "float32", *, tail: int = 0) -> int:
        """A new storage of one contiguous tensor and ``tail`` bytes more; inputs are listed as such."""
        self.size.append(prod(shape) * DTYPE_BYTES[dtype] + tail)
        self.role.append(role)
        self.whole.append((0, tuple(shape), contiguous(shape), dtype))
        self.version.append(0)
        self.maker.append(None)
        new_id = len(self.size) - 1
        if role == "input":
            self.inputs.append(self.value(new_id))
        return new_id

    def value(self, buffer: int, window: Window | None = None) -> int:
        """The value of this window at the buffer's present version; its writer lists it from now on."""
        key = (buffer, self.version[buffer], window or self.whole[buffer])
        if key not in self.values:
            maker = self.maker[buffer]
            if maker is None and self.role[buffer] not in PERSISTENT_ROLES:
                raise ValueError(f"buffer {buffer} is read before it is written")
            self.values[key] = len(self.values)
            if maker is not None:
                self.ops[maker].writes.append(self.values[key])
        return self.values[key]

    def op(
        self,
        reads: Sequence[int | Place] = (),
        creates: Sequence[int] = (),
        changes: Sequence[Place] = (),
        *,
        in_place: Sequence[tuple[int, int]] = (),
        saves: Sequence[int | Place] = (),
        target: str = "test.op",
        recompute: bool = False,
        stage: str = "forward",
    ) -> int:
        """One op. ``creates``: buffers written whole; ``changes``: windows written; ``in_place``: (created, read).

        ``saves`` are places that the op reads or creates. A change to part of a buffer reads all of it first.
        """
        read = [self._at(place) for place in reads]
        read += [self.value(buffer) for buffer, window in changes if window != self.whole[buffer]]
        old = [r if isinstance(r, int) else r[0] for r in reads]
        arguments = {buffer: self.value(buffer) for _, buffer in in_place}
        early = [self._at(p) for p in saves if (p if isinstance(p, int) else p[0]) in old]
        row = OpRow(target, read, [], [], early, recompute, stage)
        self.ops.append(row)
        for buffer in [*creates, *dict.fromkeys(buffer for buffer, _ in changes)]:
            self.version[buffer] += 1
            self.maker[buffer] = len(self.ops) - 1
        for buffer in creates:
            self.value(buffer)
        for buffer, window in changes:
            self.value(buffer, window)
        row.overwrites += [(self.value(written), arguments[taken]) for written, taken in in_place]
        row.saves += [self._at(p) for p in saves if (p if isinstance(p, int) else p[0]) not in old]
        return len(self.ops) - 1

    def _at(self, place: int | Place) -> int:
        return self.value(place) if isinstance(place, int) else self.value(*place)

    def build(self, outputs: Sequence[int | Place] = (), *, target: str = "cpu", name: str = "") -> Graph:
        """The graph; ``outputs`` are places at their last version."""
        out = tuple(self._at(place) for place in outputs)
        keys = list(self.values)
        windows = [window for _, _, window in keys]
        rows = self.ops
        graph = Graph(
            target=target,
            buffers=Buffers(bytes=tuple(self.size), role=tuple(self.role)),
            values=Values(
                buffer=tuple(buffer for buffer, _, _ in keys),
                offset=tuple(w[0] for w in windows),
                shape=tuple(w[1] for w in windows),
                stride=tuple(w[2] for w in windows),
                dtype=tuple(w[3] for w in windows),
            ),
            ops=Ops(
                target=tuple(r.target for r in rows),
                reads=tuple(tuple(r.reads) for r in rows),
                writes=tuple(tuple(r.writes) for r in rows),
                overwrites=tuple(tuple(r.overwrites) for r in rows),
                saves=tuple(tuple(r.saves) for r in rows),
                recompute=tuple(r.recompute for r in rows),
                stage=tuple(r.stage for r in rows),
            ),
            inputs=tuple(self.inputs),
            outputs=out,
            notes=Notes(name=name, buffers=(), ops=OpNotes(phase=(), modality=(), flops=(), module=(), source=())),
        )
        return blank_notes(graph)


SHAPES = ((), (4,), (8,), (2, 4), (32,), (4, 8), (64,), (100,), (3, 5, 7), (0,), (256, 4))
DTYPES = ("float32", "float32", "bfloat16", "int64", "bool")


def random_window(pick: Pick, whole: Window) -> Window:
    """The whole tensor, more often than not, or a slice, every other row, a transpose, an expansion, a byte view."""
    offset, shape, stride, dtype = whole
    kind = pick(10)
    if not shape or kind < 5:
        return whole
    width = DTYPE_BYTES[dtype]
    if kind in (5, 6) and shape[0] > 1:
        low = pick(shape[0])
        return (offset + low * stride[0] * width, (shape[0] - low, *shape[1:]), stride, dtype)
    if kind == 7 and shape[0] > 1:
        return (offset, ((shape[0] + 1) // 2, *shape[1:]), (2 * stride[0], *stride[1:]), dtype)
    if kind == 8:
        return (offset, shape[::-1], stride[::-1], dtype)
    if kind == 9 and prod(shape):
        return (offset, (prod(shape) * width,), (1,), "uint8")
    return (offset, (3, *shape), (0, *stride), dtype)


@dataclass
class Generator:
    """One random program in the making; ``legal`` are the buffers that hold something."""

    pick: Pick
    b: Builder = field(default_factory=Builder)
    legal: list[int] = field(default_factory=list)
    shapes: int = len(SHAPES)

    def one_of(self, items: Sequence[int]) -> int:
        return items[self.pick(len(items))]

    def new(self, role: str, like: int | None = None) -> int:
        tail = 24 if self.pick(12) == 0 else 0
        if like is not None:
            return self.b.buffer(role, self.b.whole[like][1], self.b.whole[like][3])
        return self.b.buffer(role, SHAPES[self.pick(self.shapes)], DTYPES[self.pick(len(DTYPES))], tail=tail)

    def recent(self) -> int:
        """A buffer to read: usually one of the last few, so that spans are short and some die in place."""
        candidates = self.legal[-4:] if self.pick(3) else self.legal
        return self.one_of(candidates)

    def step(self, stage: str) -> None:
        """One op: an elementwise one, one that changes a buffer, or one with several results."""
        reads: list[Place] = []
        for _ in range(self.pick(4) if self.legal else 0):
            buffer = self.recent()
            reads.append((buffer, random_window(self.pick, self.b.whole[buffer])))
        kind = self.pick(8)
        changeable = [x for x in self.legal if self.b.role[x] in ("state", "activation", "scratch", "gradient")]
        recompute = self.pick(4) == 0
        if kind == 0 and changeable:
            buffer = self.one_of(changeable[-3:] if self.pick(2) else changeable)
            window = random_window(self.pick, self.b.whole[buffer])
            if 0 in window[2]:  # nothing writes through an expansion
                window = self.b.whole[buffer]
            reads.append((buffer, self.b.whole[buffer]))
            extra = [self._fresh(stage)] if self.pick(3) == 0 else []
            self.b.op(reads, extra, [(buffer, window)], recompute=recompute, stage=stage)
            self.legal += extra
        elif kind < 5 and self.legal:
            self._elementwise(reads, stage, recompute=recompute)
        else:
            results = [self._fresh(stage) for _ in range(1 + (self.pick(3) == 0))]
            self.b.op(reads, results, recompute=recompute, stage=stage)
            self.legal += results

    def _fresh(self, stage: str) -> int:
        roles = ("activation", "activation", "scratch" if stage == "forward" else "gradient")
        return self.new(roles[self.pick(3)])

    def _elementwise(self, reads: list[Place], stage: str, *, recompute: bool) -> None:
        first = self.recent()
        result = self.new("gradient" if stage != "forward" and self.pick(2) else "activation", like=first)
        pairs = [(result, x) for x in (first, self.recent()) if self._same(result, x)]
        reads += [(x, self.b.whole[x]) for _, x in pairs]
        self.b.op(reads or [first], [result], in_place=list(dict.fromkeys(pairs)), recompute=recompute, stage=stage)
        self.legal.append(result)

    def _same(self, first: int, second: int) -> bool:
        return self.b.whole[first] == self.b.whole[second] and self.b.size[first] == self.b.size[second]


def random_graph(pick: Pick, *, ops: int, joint: bool = False, shuffled: bool = False) -> Graph:
    """A legal graph of about ``ops`` ops: views, changes in place, in-place pairs, saves, dead and untouched buffers.

    ``joint``: with ops of stage ``backward`` and ``update``. ``shuffled``: op ids are not in a legal order.
    """
    g = Generator(pick)
    for role in ("input", "parameter", "parameter", "constant", "state"):
        for _ in range(pick(3)):
            g.legal.append(g.new(role))
    if pick(4) == 0:
        g.new("activation")
    for index in range(ops):
        backward = joint and index >= ops // 2
        g.step("update" if backward and index >= ops - ops // 8 else "backward" if backward else "forward")
    outputs = [(x, random_window(pick, g.b.whole[x])) for x in (g.one_of(g.legal) for _ in range(pick(4)) if g.legal)]
    _save(g.b, pick)
    graph = g.b.build(outputs)
    return _shuffle(graph, pick) if shuffled else graph


def _save(b: Builder, pick: Pick) -> None:
    """Some values for the gradient: what an op touches and no later op changes."""
    last = {key: value for key, value in b.values.items() if key[1] == b.version[key[0]]}
    final = set(last.values())
    for row in b.ops:
        if row.stage == "forward" and pick(3) == 0:
            row.saves += [v for v in dict.fromkeys(row.reads + row.writes) if v in final and pick(2)]


def _shuffle(graph: Graph, pick: Pick) -> Graph:
    n = len(graph.ops)
    ids = list(range(n))
    for index in range(n - 1, 0, -1):
        second = pick(index + 1)
        ids[index], ids[second] = ids[second], ids[index]
    ops = graph.ops
    columns = {name: tuple(getattr(ops, name)[old] for old in ids) for name in Ops.__slots__}
    return blank_notes(
        Graph(
            target=graph.target,
            buffers=graph.buffers,
            values=graph.values,
            ops=Ops(**columns),
            inputs=graph.inputs,
            outputs=graph.outputs,
            notes=graph.notes,
        )
    )


def seeded(seed: int) -> Pick:
    """A fixed source of choices."""
    return random.Random(seed).randrange


@st.composite
def graphs(draw: st.DrawFn, *, max_ops: int = 16, joint: bool | None = None, shuffled: bool | None = False) -> Graph:
    """Legal random graphs; ``None`` lets the example choose."""

    def pick(below: int) -> int:
        return draw(st.integers(0, below - 1))

    choose_joint = bool(pick(2)) if joint is None else joint
    choose_shuffled = bool(pick(2)) if shuffled is None else shuffled
    return random_graph(pick, ops=pick(max_ops) + 1, joint=choose_joint, shuffled=choose_shuffled)
