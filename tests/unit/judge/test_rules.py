"""Every rule of the legal graph has a legal graph that is broken in exactly that way."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings

from tests.strategies import Builder, graphs, random_graph, seeded
from tests.unit.ir.samples import described_graph, edit, graph
from tests.work import Compared, calls_of
from tmmu.errors import AllocationOverflow, InvalidIrShapes, LivenessCycle
from tmmu.ir.call_text import TENSOR, CallText, encode_call
from tmmu.ir.graph import Buffers, Graph, Notes, OpNotes, Ops, Values
from tmmu.judge.graph_schema import GraphRule
from tmmu.judge.rules import RULES, SEMANTIC_RULES, check_graph, require_legal

TOP = 2**64 - 1
OP0, OP1 = 0, 1


class FancyInt(int):
    """Stands for the integers of other libraries."""

    __repr__ = object.__repr__


def with_notes(column: str, value: object, index: int) -> Graph:
    return edit(graph(), f"notes.ops.{column}", value, index)


def empty_window(offset: int) -> Graph:
    return edit(edit(graph(), "values.shape", (0,), 0), "values.offset", offset, 0)


def stale_chain() -> Graph:
    """Op 1 changes s by reading it; op 2 needs s as it was, and what op 1 made of it."""
    b = Builder()
    s, a = b.buffer("state"), b.buffer("activation")
    old = b.value(s)
    b.op([s], [], [(s, b.whole[s])])
    b.op([s], [a])
    base = b.build([a])
    return edit(base, "ops.reads", (*base.ops.reads[1], old), 1)


def two_alike(shape: tuple[int, ...], stride: tuple[int, ...], size: int) -> Graph:
    base = graph()
    for buffer in (4, 5):
        base = edit(base, "buffers.bytes", size, buffer)
    for value in (2, 3):
        base = edit(edit(base, "values.shape", shape, value), "values.stride", stride, value)
    return base


def changed_argument() -> Graph:
    b = Builder()
    s, a = b.buffer("state"), b.buffer("activation")
    b.op([s], [a], [(s, b.whole[s])], in_place=[(a, s)])
    return b.build([a])


def described(path: str, value: object, index: int | None = None) -> Graph:
    return edit(described_graph(), path, value, index)


def span(column: str, value: int, row: int) -> Graph:
    return described(f"notes.eager.storages.{column}", value, row)


def with_text(arguments: tuple[Any, ...], operator: str = "test.op") -> Graph:
    text = CallText(operator=operator, arguments=arguments, results=(True,))
    return described("calls.texts", encode_call(text), 0)


MUTATIONS: tuple[tuple[str, str, Callable[[], Graph]], ...] = (
    ("columns", "a role too few", lambda: edit(graph(), "buffers.role", graph().buffers.role[1:])),
    ("columns", "a stage too few", lambda: edit(graph(), "ops.stage", graph().ops.stage[1:])),
    ("columns", "flops of one op missing", lambda: edit(graph(), "notes.ops.flops", (0,))),
    ("columns", "a name too many", lambda: edit(graph(), "notes.buffers", ("",) * 13)),
    ("types", "a truth value as a size", lambda: edit(graph(), "buffers.bytes", True, 0)),
    ("types", "a float in a shape", lambda: edit(graph(), "values.shape", (8.0,), 0)),
    ("types", "an integer of another library", lambda: edit(graph(), "values.stride", (FancyInt(1),), 0)),
    ("types", "a number as a mark", lambda: edit(graph(), "ops.recompute", 1, 0)),
    ("types", "no text as a module", lambda: with_notes("module", None, 0)),
    ("types", "no text as a target", lambda: replace(graph(), target=None)),
    ("numbers", "a negative stride", lambda: edit(graph(), "values.stride", (-1,), 0)),
    ("numbers", "a negative offset", lambda: edit(graph(), "values.offset", -4, 0)),
    ("numbers", "a negative id", lambda: edit(graph(), "ops.reads", (-1,), 0)),
    ("overflow", "a size of 65 bits", lambda: edit(graph(), "buffers.bytes", TOP + 1, 0)),
    ("overflow", "an extent of 65 bits", lambda: edit(graph(), "values.shape", (TOP + 1,), 0)),
    ("words", "an unknown role", lambda: edit(graph(), "buffers.role", "spare", 0)),
    ("words", "an unknown dtype", lambda: edit(graph(), "values.dtype", "float12", 0)),
    ("words", "an unknown stage", lambda: edit(graph(), "ops.stage", "sideways", 0)),
    ("words", "an unknown target", lambda: replace(graph(), target="abacus")),
    ("words", "an unknown phase", lambda: with_notes("phase", "full moon", 0)),
    ("words", "an unknown modality", lambda: with_notes("modality", "smell", 0)),
    ("ids", "a buffer that is none", lambda: edit(graph(), "values.buffer", 12, 0)),
    ("ids", "a read of no value", lambda: edit(graph(), "ops.reads", (99,), 0)),
    ("ids", "an output of no value", lambda: replace(graph(), outputs=(99,))),
    ("ids", "three that overwrite each other", lambda: edit(graph(), "ops.overwrites", ((0, 1, 2),), 0)),
    ("ranks", "a stride too few", lambda: edit(graph(), "values.stride", (), 0)),
    ("reach", "a window beyond 64 bits", lambda: edit(graph(), "values.offset", TOP, 0)),
    ("reach", "a stride beyond 64 bits", lambda: edit(graph(), "values.stride", (TOP,), 0)),
    ("window", "a window past the end", lambda: edit(graph(), "values.offset", 4, 0)),
    ("window", "a stride past the end", lambda: edit(graph(), "values.stride", (2,), 0)),
    ("window", "a wider dtype", lambda: edit(graph(), "values.dtype", "float64", 0)),
    ("window", "an empty window past the end", lambda: empty_window(36)),
    ("once", "two ops write one value", lambda: edit(graph(), "ops.writes", (2, 3), OP1)),
    ("once", "an op writes a value twice", lambda: edit(graph(), "ops.writes", (2, 2), OP0)),
    ("defined", "an activation that nobody writes", lambda: edit(graph(), "ops.writes", (), OP0)),
    ("read-only", "a parameter written", lambda: edit(graph(), "ops.writes", (2, 1), OP0)),
    ("inputs", "an input that is a parameter", lambda: replace(graph(), inputs=(1,))),
    ("inputs", "an input that an op writes", lambda: edit(graph(), "ops.writes", (2, 0), OP0)),
    ("order", "an op that reads its own result", lambda: edit(graph(), "ops.reads", (2,), OP0)),
    ("order", "two ops that wait for each other", lambda: edit(graph(), "ops.reads", (0, 1, 3), OP0)),
    ("order", "a read of what is gone", stale_chain),
    ("outputs", "an output that is overwritten later", lambda: replace(graph(), outputs=(4,))),
    ("overwrites", "what the op does not read", lambda: edit(graph(), "ops.overwrites", ((3, 0),), OP1)),
    ("overwrites", "what the op does not write", lambda: edit(graph(), "ops.overwrites", ((2, 2),), OP1)),
    ("overwrites", "another shape", lambda: edit(graph(), "ops.overwrites", ((7, 3),), 3)),
    ("overwrites", "a part of a buffer", lambda: edit(graph(), "buffers.bytes", 40, 4)),
    ("overwrites", "what is not dense", lambda: two_alike((2, 2), (3, 0), 16)),
    ("overwrites", "what the op changes", changed_argument),
    ("saves", "a value that the op does not touch", lambda: edit(graph(), "ops.saves", (0,), OP1)),
    ("host", "an op that computes there", lambda: edit(graph(), "buffers.role", "host", 4)),
    ("sources", "a source from the root", lambda: with_notes("source", "/home/me/model.py:3", 0)),
    ("sources", "a source from a drive", lambda: with_notes("source", "C:\\model.py:3", 0)),
    ("sources", "a source from home", lambda: with_notes("source", "~/model.py:3", 0)),
    ("calls", "a call too few", lambda: described("calls.call", described_graph().calls.call[1:])),  # type: ignore[union-attr]
    ("calls", "a text that is none", lambda: described("calls.call", 99, 0)),
    ("calls", "a text that is no call", lambda: described("calls.texts", b"\x83abc", 0)),
    ("calls", "a text that is not canonical", lambda: described("calls.texts", b"\x83\x67test.op\x98\x00\x80", 0)),
    ("calls", "a text twice", lambda: described("calls.texts", described_graph().calls.texts[1], 0)),  # type: ignore[union-attr]
    ("calls", "an unknown effect", lambda: described("calls.effect", "magic", 0)),
    ("calls", "another operator", lambda: with_text(([TENSOR, 0], [TENSOR, 0]), "test.other")),
    ("calls", "more places than operands", lambda: with_text(([TENSOR, 0],) * 3)),
    ("calls", "a number without a place", lambda: described("calls.numbers", (b"\x01",), 0)),
    ("calls", "a number that is a text", lambda: described("calls.numbers", (b"\x61a",), 7)),
    ("calls", "an argument that the op does not read", lambda: described("calls.operands", (0, 7, 2), 0)),
    ("calls", "a result that the op does not write", lambda: described("calls.operands", (0, 1, 7), 0)),
    ("lifetimes", "a death too few", lambda: described("notes.eager.storages.death", (3, 6))),
    ("lifetimes", "a stream too few", lambda: described("notes.eager.storages.stream", (0, 1))),
    ("lifetimes", "gone before its last use", lambda: span("death", 1, 0)),
    ("lifetimes", "used before it is born", lambda: span("last_use", 3, 2)),
    ("lifetimes", "gone after the end", lambda: span("death", 7, 1)),
    ("lifetimes", "rows in another order", lambda: span("birth", 2, 0)),
    (
        "lifetimes",
        "a storage of the host that is gone before its use",
        lambda: described("notes.eager.host.death", 3, 0),
    ),
    ("lifetimes", "a source from the root", lambda: described("notes.eager.storages.source", "/net.py:3", 0)),
)


@pytest.mark.parametrize(("rule", "_text", "broken"), MUTATIONS, ids=[f"{rule}: {text}" for rule, text, _ in MUTATIONS])
def test_each_broken_graph_breaks_its_rule(rule: str, _text: str, broken: Callable[[], Graph]) -> None:
    assert rule in {fault.rule for fault in check_graph(broken())}


@pytest.mark.parametrize(("rule", "_text", "broken"), MUTATIONS, ids=[f"{rule}: {text}" for rule, text, _ in MUTATIONS])
def test_broken_graph_beside_a_legal_one_has_the_same_faults(
    rule: str, _text: str, broken: Callable[[], Graph]
) -> None:
    """What it shares with a graph that passed is not asked again, and nothing else is left out."""
    illegal = broken()
    legal = with_columns_of(illegal, described_graph() if illegal.calls else graph())
    assert check_graph(legal) == ()
    assert check_graph(illegal, legal=legal) == check_graph(illegal)


def with_columns_of(other: Any, base: Any) -> Any:
    """``base``, in which whatever equals what ``other`` has there is the very object of ``other``."""
    if base == other and repr(base) == repr(other):
        return other
    if not is_dataclass(base):
        return base
    return replace(
        base, **{f.name: with_columns_of(getattr(other, f.name), getattr(base, f.name)) for f in fields(base)}
    )


def test_every_rule_has_a_mutation() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
    assert set(names) == {rule for rule, _, _ in MUTATIONS}
    assert all(rule.demands for rule in RULES)


@settings(max_examples=60, deadline=None)
@given(graphs(shuffled=None))
def test_legal_graphs_pass(base: Graph) -> None:
    assert check_graph(base) == ()
    require_legal(base)


def test_corner_cases_are_legal() -> None:
    """Empty graphs, empty windows at the end, expanded and transposed windows, one input twice, an input as output."""
    require_legal(Builder().build())
    require_legal(empty_window(32))
    require_legal(two_alike((2, 4), (1, 2), 32))
    require_legal(replace(graph(), inputs=(0, 0), outputs=(0, 1)))
    require_legal(edit(edit(graph(), "values.shape", (2**40, 8), 0), "values.stride", (0, 1), 0))


def test_errors_say_who_must_act() -> None:
    with pytest.raises(AllocationOverflow, match="beyond 64 bits"):
        require_legal(edit(graph(), "buffers.bytes", TOP + 1, 0))
    with pytest.raises(AllocationOverflow, match="beyond 64 bits"):
        require_legal(edit(graph(), "values.offset", TOP, 0))
    with pytest.raises(LivenessCycle, match="wait for each other"):
        require_legal(edit(graph(), "ops.reads", (0, 1, 3), 0))
    with pytest.raises(InvalidIrShapes, match=r"covers bytes 4 to 36 of buffer 0, which has 32") as caught:
        require_legal(edit(graph(), "values.offset", 4, 0))
    assert caught.value.fields["count"] == 1


def test_op_ids_need_no_legal_order() -> None:
    """The same program, its ops listed backwards, is legal; versions follow what reads what."""
    ops = graph().ops
    turned = Ops(**{name: tuple(reversed(getattr(ops, name))) for name in Ops.__slots__})
    assert check_graph(replace(graph(), ops=turned)) == ()


def test_faults_come_in_the_order_of_the_table() -> None:
    base = edit(edit(graph(), "values.offset", 4, 0), "ops.saves", (0,), 1)
    base = edit(base, "notes.ops.source", "/x.py:1", 5)
    assert [fault.rule for fault in check_graph(base)] == ["window", "saves", "sources"]


@pytest.mark.parametrize("shuffled", [False, True])
def test_check_makes_calls_linear_in_the_ops(shuffled: bool) -> None:
    """However the ids are ordered."""
    few, many = (random_graph(seeded(5), ops=ops, shuffled=shuffled) for ops in (750, 3000))
    assert check_graph(few) == check_graph(many) == ()
    assert calls_of(lambda: check_graph(many)) < 5 * calls_of(lambda: check_graph(few))


class Spy:
    """A graph, or a table of one, that notes the path of each column that is looked at."""

    def __init__(self, target: object, path: str, paths: set[str]) -> None:
        self._target, self._path, self._paths = target, path, paths

    def __getattr__(self, name: str) -> object:
        path, content = f"{self._path}{name}", getattr(self._target, name)
        if is_dataclass(content):
            return Spy(content, f"{path}.", self._paths)
        self._paths |= set() if name == "ids" else {path}
        return content

    def __len__(self) -> int:
        return len(self._target)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", SEMANTIC_RULES, ids=[rule.name for rule in SEMANTIC_RULES])
def test_rule_looks_at_nothing_but_its_parts(rule: GraphRule) -> None:
    """Otherwise ``check_graph`` would leave it out where something that it looks at has changed."""
    for program in (described_graph(), random_graph(seeded(3), ops=40, joint=True, shuffled=True)):
        paths: set[str] = set()
        assert not list(rule.check(Spy(program, "", paths)))  # type: ignore[arg-type]
        covered = tuple(f"{part}." for part in rule.parts)
        assert paths
        assert not rule.parts or all(f"{path}.".startswith(covered) for path in paths)


def test_one_op_with_many_reads_saves_and_overwrites_is_checked_with_few_comparisons() -> None:
    """Two thousand of each: a search of the row for each would compare more than a million times."""
    count = 2_000
    dense = ((1,),) * (2 * count)
    wide = Graph(
        target="cpu",
        buffers=Buffers(bytes=(4,) * (2 * count), role=("input",) * count + ("activation",) * count),
        values=Values(
            buffer=tuple(range(2 * count)),
            offset=(0,) * (2 * count),
            shape=dense,
            stride=dense,
            dtype=("float32",) * (2 * count),
        ),
        ops=Ops(
            target=("test.op",),
            reads=(tuple(map(Compared, range(count))),),
            writes=(tuple(map(Compared, range(count, 2 * count))),),
            overwrites=(tuple((Compared(count + n), Compared(n)) for n in range(count)),),
            saves=(tuple(map(Compared, reversed(range(count)))),),
            recompute=(False,),
            stage=("forward",),
        ),
        inputs=tuple(range(count)),
        outputs=(count,),
        notes=Notes(
            name="",
            buffers=("",) * (2 * count),
            ops=OpNotes(phase=("unknown",), modality=("unknown",), flops=(0,), module=("",), source=("",)),
        ),
    )
    before = Compared.comparisons
    assert not [fault for rule in SEMANTIC_RULES for fault in rule.check(wide)]
    assert Compared.comparisons - before < 50 * count
