"""A rewriter for tests: runs the ops of a graph as told, again on fresh buffers, as twins or in sublists."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tmmu.ir.call_text import TENSOR, CallText, decode_call, encode_call
from tmmu.ir.graph import PERSISTENT_ROLES, Buffers, Graph, Notes, OpCalls, OpNotes, Ops, Values
from tmmu.ir.rewrite import RERUN, SAME, SUBLIST, TWIN, Part, Rewrite
from tmmu.judge.rewrite.expected import CallPlaces, expected_call
from tmmu.judge.rewrite.facts import LIST_OPERATORS, computes_alone, has_same_bits, has_twin


def columns(table: Any) -> dict[str, list[Any]]:
    return {column.name: list(getattr(table, column.name)) for column in fields(table)}


@dataclass
class Rewriter:
    """``current``: base value -> the value that now holds it; ops read that."""

    base: Graph
    current: dict[int, int] = field(default_factory=dict)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    maker: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.base.calls is not None
        self.calls = self.base.calls
        self.buffers, self.values = columns(self.base.buffers), columns(self.base.values)
        self.texts: dict[bytes, int] = {}

    def same(self, op: int) -> None:
        """The op itself; what it writes is what readers see from now on."""
        self._read_own(op)
        self._append(op, SAME, (), lambda value: value)

    def again(self, op: int, kind: str = RERUN) -> None:
        """The op on fresh buffers, or on those of the values that it changes."""
        fresh: dict[int, int] = {}
        new: dict[int, int] = {}

        def written(value: int) -> int:
            if value not in new:
                buffer = self.base.values.buffer[value]
                if buffer not in fresh:
                    fresh[buffer] = self._target(op, buffer)
                new[value] = self._value(value, fresh[buffer])
            return new[value]

        self._append(op, kind, (), written)
        self.current |= new

    def sublists(self, op: int, ranges: Sequence[tuple[int, int]]) -> None:
        """The op in parts."""
        self._read_own(op)
        for part in ranges:
            self._append(op, SUBLIST, part, lambda value: value)

    def can_run_again(self, op: int, latest: dict[int, int]) -> bool:
        """Whether the op computes alone and finds all that it reads: the last version of each buffer."""
        reads = [self._now(value) for value in self.base.ops.reads[op]]
        is_there = all(self.maker.get(v, -1) == latest.get(self.values["buffer"][v], -1) for v in reads)
        text = self.text(op)
        writes = [self.base.buffers.role[self.base.values.buffer[v]] for v in self.base.ops.writes[op]]
        alone = computes_alone(text) and has_same_bits(text, self.base.target)
        return is_there and alone and not PERSISTENT_ROLES & set(writes)

    def note_changes(self, latest: dict[int, int]) -> None:
        """Of the last op: which buffers it made a version of."""
        row = len(self.rows) - 1
        for value in self.rows[row][3]["writes"]:
            self.maker[value] = row
            latest[self.values["buffer"][value]] = row

    def graph(self) -> tuple[Graph, Rewrite]:
        """What was told, and what each op stands for."""
        origin, kind, part, ops, notes, call, operands, effect, numbers = map(list, zip(*self.rows, strict=True))
        notes_of = {name: tuple(row[name] for row in notes) for name in notes[0]}
        graph = Graph(
            target=self.base.target,
            buffers=Buffers(**{name: tuple(column) for name, column in self.buffers.items()}),
            values=Values(**{name: tuple(column) for name, column in self.values.items()}),
            ops=Ops(**{name: tuple(row[name] for row in ops) for name in ops[0]}),
            inputs=self.base.inputs,
            outputs=tuple(self._now(value) for value in self.base.outputs),
            notes=Notes(name=self.base.notes.name, buffers=self._names(), ops=OpNotes(**notes_of)),
            calls=OpCalls(
                texts=tuple(self.texts),
                call=tuple(call),
                operands=tuple(operands),
                effect=tuple(effect),
                numbers=tuple(numbers),
            ),
        )
        rewrite = Rewrite(base_hash=self.base.ir_hash, origin=tuple(origin), kind=tuple(kind), part=tuple(part))
        return graph, rewrite

    def _append(self, op: int, kind: str, part: Part, written: Any) -> None:
        base, ops = self.base, self.base.ops
        expected = expected_call(CallPlaces.of(self.text(op)), kind, part, base.target)
        assert not isinstance(expected, str), expected
        old = [self.calls.operands[op][place] for place in expected.operands]
        reread = [self.calls.operands[op][place] for place in expected.reread]
        concerned = {base.values.buffer[value] for value in old if value not in reread}
        is_whole = kind in (SAME, RERUN)
        reads = [value for value in ops.reads[op] if is_whole or base.values.buffer[value] in concerned] + reread
        writes = [value for value in ops.writes[op] if is_whole or base.values.buffer[value] in concerned]
        arguments = len(old) - sum(expected.text.results)
        for value in writes:
            written(value)
        places = [written(v) if v in writes else self._now(v) for v in old[arguments:]]
        operands = (*map(self._now, old[:arguments]), *places)
        row = {name: column[op] for name, column in columns(ops).items()}
        row |= {
            "reads": tuple(map(self._now, reads)),
            "writes": tuple(map(written, writes)),
            "overwrites": tuple((written(w), self._now(r)) for w, r in ops.overwrites[op] if w in writes),
        }
        row["saves"] = tuple(v if v in writes else self._now(v) for v in ops.saves[op] if v in (*reads, *writes))
        if kind in (RERUN, TWIN):
            before = self.rows[-1][3]["stage"] if self.rows else "forward"
            stages = ("forward", "backward", "update")
            row |= {
                "target": expected.text.operator,
                "saves": (),
                "recompute": False,
                "stage": stages[max(map(stages.index, (before, row["stage"])))],
            }
        notes = {name: column[op] for name, column in columns(base.notes.ops).items()}
        effect = "pure" if kind == TWIN else self.calls.effect[op]
        numbers = tuple(self.calls.numbers[op][place] for place in expected.numbers)
        self.rows.append((op, kind, part, row, notes, self._text(expected.text), operands, effect, numbers))

    def _read_own(self, op: int) -> None:
        """What the op changes is the base's own buffer, so that is what it reads and what later ops see."""
        changed = {self.base.values.buffer[value] for value in self.base.ops.writes[op]}
        self.current = {old: new for old, new in self.current.items() if self.base.values.buffer[old] not in changed}

    def _now(self, value: int) -> int:
        return self.current.get(value, value)

    def _names(self) -> tuple[str, ...]:
        names = self.base.notes.buffers
        return (*names, *("",) * (len(self.buffers["bytes"]) - len(names)))

    def text(self, op: int) -> CallText:
        """The call of a base op."""
        text = decode_call(self.calls.texts[self.calls.call[op]])
        assert text is not None
        return text

    def _text(self, text: CallText) -> int:
        return self.texts.setdefault(encode_call(text), len(self.texts))

    def _target(self, op: int, buffer: int) -> int:
        """Where a rerun writes what its origin writes to this buffer: in place of what it reads there, or anew."""
        for value in self.base.ops.reads[op]:
            if self.base.values.buffer[value] == buffer:
                return int(self.values["buffer"][self._now(value)])
        self.buffers["bytes"].append(self.base.buffers.bytes[buffer])
        self.buffers["role"].append("activation")
        return len(self.buffers["bytes"]) - 1

    def _value(self, value: int, buffer: int) -> int:
        for name, column in self.values.items():
            column.append(buffer if name == "buffer" else column[value])
        return len(self.values["buffer"]) - 1


def edited(rewrite: Rewrite, column: str, op: int, entry: Any) -> Rewrite:
    """One cell of a rewrite changed."""
    rows = list(getattr(rewrite, column))
    rows[op] = entry
    return replace(rewrite, **{column: tuple(rows)})


def random_rewrite(base: Graph, pick: Callable[[int], int], *, with_sublists: bool = False) -> tuple[Graph, Rewrite]:
    """Every op once, and some that compute alone again, as late as what they read is still there.

    ``with_sublists``: batch norms have twins, and lists are cut in two.
    """
    rewriter = Rewriter(base)
    latest: dict[int, int] = {}
    done: list[int] = []
    for op in base.ops.ids:
        for earlier in [each for each in done if pick(6) == 0 and rewriter.can_run_again(each, latest)]:
            rewriter.again(earlier)
            rewriter.note_changes(latest)
        length = CallPlaces.of(rewriter.text(op)).length
        if with_sublists and length > 1 and rewriter.text(op).operator in LIST_OPERATORS:
            cut = 1 + pick(length - 1)
            for part in ((0, cut), (cut, length)):
                rewriter.sublists(op, [part])
                rewriter.note_changes(latest)
        else:
            rewriter.same(op)
            rewriter.note_changes(latest)
        if with_sublists and has_twin(rewriter.text(op), base.target):
            rewriter.again(op, TWIN)
            rewriter.note_changes(latest)
        done.append(op)
    return rewriter.graph()


def without_arguments(graph: Graph, row: int) -> Graph:
    """The graph with tensors alone in the call of one of its texts."""
    assert graph.calls is not None
    text = decode_call(graph.calls.texts[row])
    assert text is not None
    tensors = tuple(each for each in text.arguments if isinstance(each, list) and TENSOR in str(each))
    bare = encode_call(replace(text, arguments=tensors))
    texts = tuple(bare if place == row else each for place, each in enumerate(graph.calls.texts))
    return replace(graph, calls=replace(graph.calls, texts=texts))
