"""What the judge of rewrites passes has the bits of its base: reruns, twins and sublists at random, run twice."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from tests.runtime.harness import TOKEN, plan_of, same_bits
from tests.strategies import seeded
from tests.unit.ir.samples import edit
from tests.unit.judge.rewrite.programs import step
from tests.unit.judge.rewrite.rewriter import edited, random_rewrite
from tmmu.ir.graph import Graph, Ops
from tmmu.ir.rewrite import RERUN, SUBLIST, TWIN, Rewrite
from tmmu.ir.windows import same_window
from tmmu.judge.check import judge
from tmmu.judge.rewrite.check import check_rewrite, require_meaning
from tmmu.judge.rules import check_graph
from tmmu.passes.lowering.read_calls import read_program
from tmmu.runtime.execute.bind import bind


def weights(graph: Graph) -> dict[str, torch.Tensor]:
    """Small numbers for all that persists."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    kept = {"parameter", "state", "constant"}
    values, names = graph.values, graph.notes.buffers
    for value, buffer in enumerate(values.buffer):
        name = names[buffer]
        if graph.buffers.role[buffer] in kept and name not in found and not values.offset[value]:
            shape, dtype = values.shape[value], getattr(torch, values.dtype[value])
            fill = torch.rand(shape, generator=generator) if dtype.is_floating_point else torch.zeros(shape)
            found[name] = fill.to(dtype).as_strided(shape, values.stride[value])
    return found


def run(graph: Graph) -> list[torch.Tensor]:
    """Outputs of two steps, and all that persists after them."""
    program = read_program(graph)
    plan = plan_of(program, mode="backward", preset="train_full")
    judge(graph, plan, token=TOKEN)
    executor = bind(program, plan, token=TOKEN, weights=weights(graph), device="cpu")
    shape = graph.values.shape[graph.inputs[0]]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    results: list[torch.Tensor] = []
    torch.manual_seed(11)
    for _ in range(2):
        results += [
            tensor.clone() for tensor in executor.run({graph.notes.buffers[graph.values.buffer[graph.inputs[0]]]: x})
        ]
    results += [executor.state(name).clone() for name in executor.states]
    executor.close()
    return results


@pytest.mark.parametrize("optimizer", ["adamw:foreach", "adamw:fused"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 40))])
def test_rewritten_steps_have_the_bits_of_their_base(optimizer: str, seed: int) -> None:
    base = step(optimizer)
    graph, rewrite = random_rewrite(base, seeded(seed), with_sublists=True)
    require_meaning(base, graph, rewrite)
    assert {RERUN, TWIN, SUBLIST} <= set(rewrite.kind)
    expected, found = run(base), run(graph)
    assert len(expected) == len(found) > 20
    assert all(map(same_bits, expected, found))


def mutated(pair: tuple[Graph, Rewrite], pick: Callable[[int], int]) -> tuple[Graph, Rewrite]:
    """One cell of one op is another op's, or a value with the same window."""
    graph, rewrite = pair
    assert graph.calls is not None
    op, other = pick(len(graph.ops)), pick(len(graph.ops))
    kind = pick(6)
    if kind == 0:
        return edit(graph, "calls.call", graph.calls.call[other], op), rewrite
    if kind == 1:
        return graph, edited(edited(rewrite, "origin", op, rewrite.origin[other]), "kind", op, rewrite.kind[other])
    if kind == 2:
        return edit(graph, "outputs", pick(len(graph.values)), pick(len(graph.outputs))), rewrite
    if kind == 3:
        moved = list(graph.ops.ids)
        moved.insert(other, moved.pop(op))
        ops = Ops(**{each.name: tuple(getattr(graph.ops, each.name)[i] for i in moved) for each in fields(Ops)})
        calls = {
            name: tuple(getattr(graph.calls, name)[i] for i in moved)
            for name in ("call", "operands", "effect", "numbers")
        }
        rows = {name: tuple(getattr(rewrite, name)[i] for i in moved) for name in ("origin", "kind", "part")}
        return replace(graph, ops=ops, calls=replace(graph.calls, **calls)), replace(rewrite, **rows)
    return _read_elsewhere(graph, op, pick), rewrite


def _read_elsewhere(graph: Graph, op: int, pick: Callable[[int], int]) -> Graph:
    """An op reads another value with the window of one that it reads."""
    assert graph.calls is not None
    if not graph.ops.reads[op]:
        return graph
    old = graph.ops.reads[op][pick(len(graph.ops.reads[op]))]
    alike = [value for value in graph.values.ids if value != old and same_window(graph, value, old)]
    if not alike:
        return graph
    new = alike[pick(len(alike))]
    for path, rows in (("ops.reads", graph.ops.reads), ("calls.operands", graph.calls.operands)):
        graph = edit(graph, path, tuple(new if value == old else value for value in rows[op]), op)
    return graph


def same_runs(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(same_bits, first, second))


def require_bits_of_mutations(
    base: Graph,
    pair: tuple[Graph, Rewrite],
    pick: Callable[[int], int],
    *,
    count: int,
    run_graph: Callable[[Graph], Any] = run,
    is_same: Callable[[Any, Any], bool] = same_runs,
) -> None:
    """Every one of so many mutations of the pair is refused by a judge, as some are, or has the bits of the base."""
    expected, refused = run_graph(base), 0
    for _ in range(count):
        graph, rewrite = mutated(pair, pick)
        if check_graph(graph) or check_rewrite(base, graph, rewrite):
            refused += 1
        elif graph != pair[0]:
            assert is_same(expected, run_graph(graph))
    assert refused > 5


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_mutation_that_passes_both_judges_has_the_bits_of_the_base(seed: int) -> None:
    pick, base = seeded(seed), step("adamw:fused")
    pair = random_rewrite(base, pick, with_sublists=True)
    require_bits_of_mutations(base, pair, pick, count=80 if seed else 20)
