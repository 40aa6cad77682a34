"""The pass table: facts are given before they are needed, and a pass that breaks a promise is named."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.ir.test_edit import diamond, halves_of
from tmmu.errors import InternalError, LivenessCycle
from tmmu.ir.edit import keep_ops, with_columns
from tmmu.ir.program import Program, ValueRef
from tmmu.passes.lowering.eliminate_dead_ops import eliminate_dead_ops
from tmmu.passes.meaning import changes_only, drops_without_effect
from tmmu.passes.pipeline import CALLS, LIVE, LOWERED, PASSES, Pass, run_passes


def test_each_pass_has_what_it_needs_from_those_before_it() -> None:
    facts = set(LOWERED)
    for row in PASSES:
        assert set(row.needs) <= facts, row.name
        facts = (facts | set(row.gives)) - set(row.ends)
    assert {fact.name for fact in facts} == {"calls", "live", "saves", "overwrites", "labels", "described"}


def test_each_pass_is_called_what_its_function_is_called() -> None:
    assert [row.name for row in PASSES] == [row.run.__name__ for row in PASSES]  # type: ignore[attr-defined]


def test_pass_without_what_it_needs_is_refused() -> None:
    with pytest.raises(InternalError, match="mark_saves needs live"):
        run_passes(diamond(), PASSES[1:], LOWERED)


def test_table_leaves_no_dead_op() -> None:
    assert len(run_passes(diamond(), PASSES, LOWERED).calls) == 3


def reading_another(program: Program) -> Program:
    """The last op reads its input's input."""
    reads = (*program.graph.ops.reads[:-1], program.graph.ops.reads[-2])
    last = replace(program.calls[-1], args=(ValueRef(reads[-1][0]),))
    return replace(with_columns(program, reads=reads), calls=(*program.calls[:-1], last))


def reading_the_future(program: Program) -> Program:
    reads = ((program.graph.outputs[0],), *program.graph.ops.reads[1:])
    return with_columns(program, reads=reads)


def without_last_effect(program: Program) -> Program:
    """Drops the last op, which nobody would miss but for its effect."""
    graph = replace(program.graph, outputs=(), ops=program.graph.ops)
    return keep_ops(replace(program, graph=graph), [0])


def with_another_operator(program: Program) -> Program:
    return with_columns(program, target=("aten.bmm.default", *program.graph.ops.target[1:]))


def with_another_argument(program: Program) -> Program:
    first = replace(program.calls[0], args=(*program.calls[0].args, 2))
    return replace(program, calls=(first, *program.calls[1:]))


def with_other_outputs(program: Program) -> Program:
    return replace(program, graph=replace(program.graph, outputs=(2,)))


def without_inputs(program: Program) -> Program:
    return replace(program, graph=replace(program.graph, inputs=()))


def with_another_weight(program: Program) -> Program:
    buffers = replace(program.graph.buffers, bytes=(64, *program.graph.buffers.bytes[1:]))
    return replace(program, graph=replace(program.graph, buffers=buffers))


def with_swapped_calls(program: Program) -> Program:
    return replace(program, calls=(program.calls[1], program.calls[0], *program.calls[2:]))


BROKEN = {
    "illegal graph": (reading_the_future, "broke its promise"),
    "another argument value": (reading_another, "is another one now"),
    "another plain argument": (with_another_argument, "is another one now"),
    "operators of graph and call differ": (with_another_operator, "its call aten.mm.default"),
    "other outputs": (with_other_outputs, "the outputs are others"),
    "inputs gone": (without_inputs, "the inputs are others"),
    "another size of what the caller keeps": (with_another_weight, "is another one now"),
    "calls moved": (with_swapped_calls, "is another one now"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_pass_that_breaks_a_promise_is_named(name: str) -> None:
    run, said = BROKEN[name]
    row = Pass(name="broken", run=run, meaning=drops_without_effect)
    with pytest.raises(InternalError, match=f"pass broken.*{said}"):
        run_passes(diamond(), [row], LOWERED)


@pytest.mark.parametrize("text", ["nan", "-0.0", "1e30"])
@pytest.mark.parametrize("kind", [float, complex])
def test_number_is_the_same_only_as_an_operator_sees_it(kind: Callable[[str], object], text: str) -> None:
    def with_number(number: object) -> Program:
        program = diamond()
        first = replace(program.calls[0], args=(*program.calls[0].args, number))
        return replace(program, calls=(first, *program.calls[1:]))

    before = with_number(kind(text))
    assert not list(drops_without_effect(before, with_number(kind(text))))
    assert list(drops_without_effect(before, with_number(kind("0.0"))))


def test_pass_that_drops_an_effect_is_named() -> None:
    program = diamond()
    targets = ("aten.mm.default", "aten.rand.default", "aten.mm.default", "aten.mm.default")
    calls = tuple(replace(call, operator=target) for call, target in zip(program.calls, targets, strict=True))
    program = replace(with_columns(program, target=targets), calls=calls)
    row = Pass(name="broken", run=lambda p: keep_ops(p, [0, 2, 3]), meaning=drops_without_effect)
    with pytest.raises(InternalError, match=r"op 1 has an effect, and is gone"):
        run_passes(program, [row], LOWERED)


def test_pass_that_leaves_dead_ops_does_not_give_their_absence() -> None:
    row = Pass(name="lazy", run=replace, meaning=changes_only(), gives=(LIVE,))
    with pytest.raises(InternalError, match=r"op 1 \(aten.mm.default\) is dead"):
        run_passes(diamond(), [row], LOWERED)


EDITS: dict[str, Callable[[Program], Program]] = {
    "recompute": lambda p: with_columns(p, recompute=(True,) * 4),
    "calls": with_another_argument,
    "outputs": with_other_outputs,
}


@pytest.mark.parametrize("name", EDITS)
def test_column_that_a_pass_did_not_declare_may_not_change(name: str) -> None:
    row = Pass(name="broken", run=EDITS[name], meaning=changes_only("saves"))
    with pytest.raises(InternalError, match=f"{name}.* changed"):
        run_passes(diamond(), [row], ())


def test_column_that_a_pass_declared_may_change() -> None:
    row = Pass(name="marks", run=EDITS["recompute"], meaning=changes_only("recompute"))
    assert run_passes(diamond(), [row], (CALLS,)).graph.ops.recompute == (True,) * 4


def test_halves_that_hand_out_something_else_are_found() -> None:
    program = diamond(halves_of((ValueRef(2), 0), after=4, forward_ops=4))
    joint = halves_of((ValueRef(3), 0), after=4, forward_ops=4)
    assert not list(drops_without_effect(program, eliminate_dead_ops(program)))
    faults = list(drops_without_effect(program, replace(program, joint=joint)))
    assert [fault.what for fault in faults] == ["the halves hand out other values, or elsewhere"]


def nothing(program: Program) -> Program:
    return program


def test_program_that_comes_in_is_checked_though_no_pass_changes_it() -> None:
    row = Pass(name="nothing", run=nothing, meaning=changes_only())
    with pytest.raises(LivenessCycle):
        run_passes(reading_the_future(diamond()), [row], LOWERED)
    with pytest.raises(InternalError, match=r"pass nothing.*its call aten.mm.default"):
        run_passes(with_another_operator(diamond()), [row], LOWERED)


def test_unread_weight_that_goes_is_missed() -> None:
    program = diamond()
    buffers = replace(
        program.graph.buffers, bytes=(*program.graph.buffers.bytes, 8), role=(*program.graph.buffers.role, "parameter")
    )
    notes = replace(program.graph.notes, buffers=(*program.graph.notes.buffers, "unread"))
    wide = replace(program, graph=replace(program.graph, buffers=buffers, notes=notes))
    assert not list(drops_without_effect(wide, eliminate_dead_ops(wide)))
    assert "outlives the step" in next(iter(drops_without_effect(wide, program))).what
