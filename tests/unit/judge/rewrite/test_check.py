"""A rewritten step means its base, or the judge of rewrites says where it does not: each rule broken once."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.strategies import seeded
from tests.unit.ir.samples import edit
from tests.unit.judge.rewrite.programs import step
from tests.unit.judge.rewrite.rewriter import Rewriter, edited, random_rewrite
from tmmu.errors import RewriteUnsound
from tmmu.ir.call_text import decode_call, encode_call, encode_float
from tmmu.ir.graph import Graph
from tmmu.ir.rewrite import RERUN, SUBLIST, SUMMAND, TWIN, Rewrite
from tmmu.judge.rewrite.check import check_rewrite, require_meaning
from tmmu.judge.rewrite.rules import RULES
from tmmu.judge.rules import check_graph

OPTIMIZERS = ("adamw:foreach", "adamw:fused")
Pair = tuple[Graph, Rewrite]


def base() -> Graph:
    return step("adamw:foreach")


def find(target: str, graph: Graph | None = None) -> int:
    return (graph or base()).ops.target.index(f"aten.{target}")


def whole(graph: Graph | None = None) -> Rewriter:
    """Every op as it is."""
    rewriter = Rewriter(graph or base())
    for op in rewriter.base.ops.ids:
        rewriter.same(op)
    return rewriter


def with_rerun(target: str, *, before: str = "gelu_backward.default", kind: str = RERUN) -> Pair:
    """One op again, before another one."""
    rewriter = Rewriter(base())
    for op in base().ops.ids:
        if op == find(before):
            rewriter.again(find(target), kind)
        rewriter.same(op)
    return rewriter.graph()


def row_of(pair: Pair, kind: str) -> int:
    return pair[1].kind.index(kind)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_step_as_it_is_means_itself(optimizer: str) -> None:
    graph, rewrite = whole(step(optimizer)).graph()
    assert check_graph(graph) == check_rewrite(step(optimizer), graph, rewrite) == ()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_reruns_of_what_computes_alone_mean_the_base(optimizer: str, seed: int) -> None:
    graph, rewrite = random_rewrite(step(optimizer), seeded(seed))
    assert RERUN in rewrite.kind
    assert check_graph(graph) == check_rewrite(step(optimizer), graph, rewrite) == ()
    require_meaning(step(optimizer), graph, rewrite)


def test_batch_norm_runs_again_without_its_statistics() -> None:
    graph, rewrite = with_rerun("native_batch_norm.default", kind=TWIN)
    assert check_graph(graph) == check_rewrite(base(), graph, rewrite) == ()
    assert len(graph.ops.writes[row_of((graph, rewrite), TWIN)]) == 3


def with_masked_twin() -> Pair:
    """Dropout again, by the mask that it drew, before the backward pass reads it."""
    return with_rerun("native_dropout.default", kind=TWIN)


def test_dropout_runs_again_with_the_mask_that_it_drew() -> None:
    graph, rewrite = with_masked_twin()
    assert check_graph(graph) == check_rewrite(base(), graph, rewrite) == ()
    row, first = row_of((graph, rewrite), TWIN), find("native_dropout.default")
    assert graph.calls is not None
    result, mask = graph.calls.operands[first][1:]
    assert mask in graph.ops.reads[row]
    assert {graph.values.buffer[value] for value in graph.ops.writes[row]}.isdisjoint(
        {graph.values.buffer[mask], graph.values.buffer[result]}
    )


def reread(pair: Pair, *, old: int, new: int) -> Pair:
    """The twin reads another value."""
    graph, rewrite = pair
    row = row_of(pair, TWIN)
    assert graph.calls is not None
    for path, rows in (("ops.reads", graph.ops.reads), ("calls.operands", graph.calls.operands)):
        graph = edit(graph, path, tuple(new if value == old else value for value in rows[row]), row)
    return graph, rewrite


def another_mask() -> Pair:
    """A twin that multiplies by the mask of another dropout of the same input."""
    rewriter = Rewriter(step("masks"))
    first, second = (op for op, name in enumerate(rewriter.base.ops.target) if "native_dropout" in name)
    for op in rewriter.base.ops.ids:
        rewriter.same(op)
        if op == second:
            rewriter.again(first, TWIN)
    old, new = (rewriter.calls.operands[op][2] for op in (first, second))
    return reread(rewriter.graph(), old=old, new=new)


def twin_of_changed_input() -> Pair:
    """A twin that multiplies what its input has become since."""
    rewriter = whole(step("masks"))
    graph = rewriter.base
    dropout, change = find("native_dropout.default", graph), find("add_.Tensor", graph)
    rewriter.current[graph.ops.reads[dropout][0]] = graph.ops.writes[change][0]
    rewriter.again(dropout, TWIN)
    return rewriter.graph()


def mask_written_again() -> Pair:
    """A twin that says that it writes the mask too."""
    graph, rewrite = with_masked_twin()
    row = row_of((graph, rewrite), TWIN)
    mask = graph.calls.operands[find("native_dropout.default")][2]  # type: ignore[union-attr]
    return edit(graph, "ops.writes", (*graph.ops.writes[row], mask), row), rewrite


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_update_is_cut_into_parameters(optimizer: str) -> None:
    graph = step(optimizer)
    rewriter = Rewriter(graph)
    for op in graph.ops.ids:
        if graph.ops.stage[op] != "update":
            rewriter.same(op)
    for low in range(6):
        for op in graph.ops.ids:
            if graph.ops.stage[op] == "update" and "foreach_add_.Tensor" not in graph.ops.target[op]:
                rewriter.sublists(op, [(low, low + 1)])
            elif graph.ops.stage[op] == "update" and low == 0:
                rewriter.same(op)
    made, rewrite = rewriter.graph()
    assert check_graph(made) == check_rewrite(graph, made, rewrite) == ()


def update_in(*ranges: tuple[int, int]) -> Pair:
    rewriter = Rewriter(step("adamw:fused"))
    for op in rewriter.base.ops.ids:
        if "_fused_adamw_" in rewriter.base.ops.target[op]:
            rewriter.sublists(op, ranges)
        else:
            rewriter.same(op)
    return rewriter.graph()


def recalled(pair: Pair, op: int, old: object, new: object) -> Pair:
    """Another argument in the call of one op."""
    graph, rewrite = pair
    assert graph.calls is not None
    text = decode_call(graph.calls.texts[graph.calls.call[op]])
    assert text is not None
    arguments = tuple(new if argument == old else argument for argument in text.arguments)
    assert arguments != text.arguments
    texts = (*graph.calls.texts, encode_call(replace(text, arguments=arguments)))  # type: ignore[arg-type]
    return edit(edit(graph, "calls.texts", texts), "calls.call", len(texts) - 1, op), rewrite


def swapped_operands() -> Pair:
    graph, rewrite = with_rerun("mul.Tensor")
    row = row_of((graph, rewrite), RERUN)
    assert graph.calls is not None
    first, second, *rest = graph.calls.operands[row]
    return edit(graph, "calls.operands", (second, first, *rest), row), rewrite


def rerun_after_the_update() -> Pair:
    """An addmm again, with the weights that the update has left."""
    rewriter = whole()
    graph = rewriter.base
    addmm, update = find("addmm.default"), len(graph.ops) - 1
    updated = {graph.values.buffer[value]: value for value in graph.ops.writes[update]}
    for value in graph.ops.reads[addmm]:
        if graph.values.buffer[value] in updated:
            rewriter.current[value] = updated[graph.values.buffer[value]]
    rewriter.again(addmm)
    return rewriter.graph()


def other_window() -> Pair:
    """A product that reads the turned window where its origin reads the whole."""
    graph, rewrite = with_rerun("mul.Tensor")
    row = row_of((graph, rewrite), RERUN)
    value = graph.ops.reads[row][0]
    return edit(graph, "values.stride", tuple(reversed(graph.values.stride[value])), value), rewrite


def change_beside() -> Pair:
    """A change in place that reads one buffer and writes another one."""
    rewriter = Rewriter(base())
    change = find("mul_.Tensor")
    for op in base().ops.ids:
        if op == change:
            graph_buffer = base().values.buffer[base().ops.writes[op][0]]
            rewriter.buffers["bytes"].append(base().buffers.bytes[graph_buffer])
            rewriter.buffers["role"].append("activation")
            fresh = len(rewriter.buffers["bytes"]) - 1
            for value in base().ops.writes[op]:
                rewriter.current[value] = rewriter._value(value, fresh)
            rewriter._append(op, RERUN, (), lambda value: rewriter.current[value])
        else:
            rewriter.same(op)
    return rewriter.graph()


def without(target: str) -> Pair:
    rewriter = Rewriter(base())
    for op in base().ops.ids:
        if op != find(target):
            rewriter.same(op)
    return rewriter.graph()


def twice(target: str) -> Pair:
    rewriter = whole()
    rewriter.same(find(target))
    return rewriter.graph()


def exchanged_counters() -> Pair:
    """Both counters' changes with each other's numbers of rows: the second op stands for the first."""
    graph, rewrite = whole().graph()
    return graph, edited(edited(rewrite, "origin", 0, 1), "origin", 1, 0)


def noise_in_another_order() -> Pair:
    """Two draws of a model change places."""
    rewriter = Rewriter(two_draws())
    order = [op for op in rewriter.base.ops.ids if "bernoulli" not in rewriter.base.ops.target[op]]
    draws = [op for op in rewriter.base.ops.ids if "bernoulli" in rewriter.base.ops.target[op]]
    empties = [op for op in order if "empty_like" in rewriter.base.ops.target[op]]
    for op in [*empties, *reversed(draws), *(op for op in order if op not in empties)]:
        rewriter.same(op)
    return rewriter.graph()


def two_draws() -> Graph:
    return step("draws")


def output_of_another_value() -> Pair:
    graph, rewrite = whole().graph()
    other = graph.ops.writes[find("mean.default")][0]
    assert other not in graph.outputs
    return edit(graph, "outputs", other, 0), rewrite


def overwriting() -> Pair:
    graph, rewrite = whole().graph()
    product = find("mm.default")
    return edit(
        graph, "ops.overwrites", ((graph.ops.writes[product][0], graph.ops.reads[product][0]),), product
    ), rewrite


def new_state() -> Pair:
    graph, rewrite = with_rerun("gelu.default")
    return edit(graph, "buffers.role", "state", len(graph.buffers) - 1), rewrite


def other_numbers() -> Pair:
    graph, rewrite = whole().graph()
    assert graph.calls is not None
    update = find("_foreach_mul_.Scalar")
    number = b"\x48" + encode_float(0.5)
    return edit(graph, "calls.numbers", (number,) * len(graph.calls.numbers[update]), update), rewrite


BROKEN: dict[str, tuple[str, Callable[[], Pair]]] = {
    "another base": ("form", lambda: (whole().graph()[0], replace(whole().graph()[1], base_hash=bytes(32)))),
    "an op of no base": ("form", lambda: (whole().graph()[0], edited(whole().graph()[1], "origin", 3, 99))),
    "an unknown kind": ("form", lambda: (whole().graph()[0], edited(whole().graph()[1], "kind", 3, "copy"))),
    "a part of a whole op": ("form", lambda: (whole().graph()[0], edited(whole().graph()[1], "part", 3, (0, 1)))),
    "a row too few": ("form", lambda: (whole().graph()[0], replace(whole().graph()[1], part=()))),
    "a sum of parts": ("nearness", lambda: edited_kind(with_rerun("gelu.default"), SUMMAND, (0, 1))),
    "new state": ("frame", new_state),
    "another target": ("frame", lambda: (edit(whole().graph()[0], "target", "cuda"), whole().graph()[1])),
    "another op": ("call", lambda: (whole().graph()[0], edited(whole().graph()[1], "origin", 3, 4))),
    "other numbers": ("call", other_numbers),
    "another stage": ("call", lambda: (edit(whole().graph()[0], "ops.stage", "update", 3), whole().graph()[1])),
    "another effect": ("call", lambda: (edit(whole().graph()[0], "calls.effect", "once", 3), whole().graph()[1])),
    "another eps of a twin": (
        "call",
        lambda: recalled(
            (pair := with_rerun("native_batch_norm.default", kind=TWIN)), row_of(pair, TWIN),
            encode_float(1e-5), encode_float(1e-3),
        ),
    ),
    "another scale of a twin": (
        "call",
        lambda: recalled(
            (pair := with_masked_twin()), row_of(pair, TWIN), encode_float(1.25), encode_float(1.5)
        ),
    ),
    "another mask": ("operands", another_mask),
    "a mask written again": ("operands", mask_written_again),
    "a twin after its input changed": ("operands", twin_of_changed_input),
    "a rerun of a dropout": ("effects", lambda: with_rerun("native_dropout.default")),
    "a twin of what has none": (
        "call", lambda: edited_kind(with_rerun("gelu.default"), TWIN)
    ),
    "a sublist of what is no list": ("call", lambda: edited_kind(with_rerun("gelu.default"), SUBLIST, (0, 1))),
    "swapped operands": ("operands", swapped_operands),
    "a rerun after the update": ("operands", rerun_after_the_update),
    "another window": ("operands", other_window),
    "a change beside": ("operands", change_beside),
    "an overwriting of its own": ("operands", overwriting),
    "a rerun of noise": ("effects", lambda: with_rerun("bernoulli_.float")),
    "a rerun of statistics": ("effects", lambda: with_rerun("native_batch_norm.default")),
    "noise twice": ("effects", lambda: twice("bernoulli_.float")),
    "no counter": ("effects", lambda: without("add_.Tensor")),
    "two updates": ("effects", lambda: twice("_foreach_addcdiv_.ScalarList")),
    "a missing sublist": ("effects", lambda: update_in((0, 2), (3, 6))),
    "a last sublist missing": ("effects", lambda: update_in((0, 5))),
    "overlapping sublists": ("effects", lambda: update_in((0, 4), (3, 6))),
    "draws in another order": ("sequence", noise_in_another_order),
    "another output": ("outputs", output_of_another_value),
}  # fmt: skip


def edited_kind(pair: Pair, kind: str, part: tuple[int, ...] = ()) -> Pair:
    graph, rewrite = pair
    row = row_of(pair, RERUN)
    return graph, edited(edited(rewrite, "kind", row, kind), "part", row, part)


def bases() -> Iterator[Graph]:
    yield from (base(), step("adamw:fused"), step("masks"), two_draws())


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rewrite_is_refused_by_its_rule(name: str) -> None:
    rule, make = BROKEN[name]
    graph, rewrite = make()
    origin = next((each for each in bases() if each.ir_hash == rewrite.base_hash), base())
    faults = check_rewrite(origin, graph, rewrite)
    assert {fault.rule for fault in faults} == {rule}
    with pytest.raises(RewriteUnsound, match=r"does not mean its base: \[" + rule):
        require_meaning(origin, graph, rewrite)


def test_every_rule_is_broken_by_a_test() -> None:
    assert {rule for rule, _ in BROKEN.values()} == {rule.__name__ for rule in RULES}
