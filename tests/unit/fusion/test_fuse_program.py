"""The fused program: judged, planned as any other, and the same as before where its members run one by one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.runtime.harness import TOKEN, plan_of, weights_of
from tests.unit.fusion.programs import Cache, Net, cache_inputs, net_inputs, program_of
from tmmu.errors import InternalError
from tmmu.fusion import fuse_program as subject
from tmmu.fusion.call_form import KernelForm
from tmmu.fusion.fuse_below import fuse_below
from tmmu.fusion.fuse_program import fuse_program
from tmmu.fusion.fused_operators import fused_operator, group_of, is_fused
from tmmu.fusion.group import FusionGroup
from tmmu.ir.graph import SCRATCH, Graph
from tmmu.ir.plan import segment_bytes
from tmmu.ir.program import Program
from tmmu.judge.check import judge
from tmmu.runtime.compare.reference import ReferenceExecutor

BARE = KernelForm(pointers=(), scratch=())


def bare_form(group: FusionGroup) -> KernelForm:
    """A form whose kernel wants nothing beside its results; no kernel is made of it."""
    return BARE


CASES: list[tuple[Callable[[], Any], Callable[[], dict[str, torch.Tensor]], dict[str, Any]]] = [
    (Net, net_inputs, {}),
    (Net, lambda: net_inputs(rows=1), {}),
    (Cache, cache_inputs, {}),
]


@pytest.mark.parametrize(("make", "inputs", "options"), CASES)
def test_members_one_by_one_have_the_bits_of_the_program(make: Any, inputs: Any, options: Any) -> None:
    torch.manual_seed(0)
    module, given = make(), inputs()
    program = program_of(make, given, **options)
    fused = fuse_program(program, bare_form)
    assert sum(is_fused(call.operator) for call in fused.calls) > 0
    results = []
    for each in (program, fused):
        executor = ReferenceExecutor(each, weights_of(module))
        executor.run(each.graph.ops.ids, {name: tensor.clone() for name, tensor in given.items()})
        results.append([executor.value(value).clone() for value in each.graph.outputs])
    for before, after in zip(*results, strict=True):
        assert before.equal(after)


@pytest.mark.parametrize(("make", "inputs", "options"), CASES)
def test_a_fused_program_is_planned_and_judged(make: Any, inputs: Any, options: Any) -> None:
    program = program_of(make, inputs(), **options)
    fused = fuse_program(program, lambda _: KernelForm(pointers=(), scratch=(100, 28)))
    plan = plan_of(fused)
    judge(fused.graph, plan, token=TOKEN)
    scratch = [
        size for size, role in zip(fused.graph.buffers.bytes, fused.graph.buffers.role, strict=True) if role == SCRATCH
    ]
    assert scratch == [192] * sum(is_fused(call.operator) for call in fused.calls)  # pieces begin at 64 bytes
    assert len(fused.graph.ops) < len(program.graph.ops)


def test_a_step_of_training_is_fused_in_each_of_its_stages() -> None:
    program = program_of(Net, net_inputs(), mode="backward", loss=lambda run, **inputs: run(**inputs).sum())
    fused = fuse_program(program, bare_form)
    stages = {fused.graph.ops.stage[op] for op, call in enumerate(fused.calls) if is_fused(call.operator)}
    assert stages == {"forward", "backward"}
    for call in fused.calls:
        if is_fused(call.operator):
            assert len(group_of(call.operator).members) > 0


def test_a_region_without_a_kernel_is_cut_until_it_has_one() -> None:
    program = program_of(Net, net_inputs())
    most = max(
        len(group_of(c.operator).members) for c in fuse_program(program, bare_form).calls if is_fused(c.operator)
    )
    fused = fuse_program(program, lambda group: BARE if len(group.members) < most else None)
    sizes = [len(group_of(call.operator).members) for call in fused.calls if is_fused(call.operator)]
    assert sizes
    assert max(sizes) < most
    assert fuse_program(program, lambda _: None) is program


def test_equal_groups_are_one_operator() -> None:
    program = program_of(Net, net_inputs())
    group = next(group_of(call.operator) for call in fuse_program(program, bare_form).calls if is_fused(call.operator))
    assert fused_operator(group) is fused_operator(replace(group))
    assert group.digest in str(fused_operator(group))


BREAKS: list[Callable[[Program], Program]] = [
    lambda p: replace(p, graph=_with_ops(p.graph, reads=tuple(row[::-1] for row in p.graph.ops.reads))),
    lambda p: replace(p, calls=(*p.calls[:-1], replace(p.calls[0])), graph=p.graph),
    lambda p: replace(p, calls=p.calls[:-1]),
]


def _with_ops(graph: Graph, **columns: Any) -> Graph:
    return replace(graph, ops=replace(graph.ops, **columns), calls=None)


@pytest.mark.parametrize("damage", BREAKS)
def test_a_fused_program_that_is_another_is_refused(
    damage: Callable[[Program], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_of(Net, net_inputs())
    insert = subject._insert_fused
    monkeypatch.setattr(subject, "_insert_fused", lambda *args, **kwargs: damage(insert(*args, **kwargs)))
    with pytest.raises(InternalError, match="fuse"):
        fuse_program(program, bare_form)


def stack_bytes(graph: Graph) -> int:
    return segment_bytes(plan_of(Program(graph=graph, calls=())).arenas, "stack")


def test_the_peak_never_rises() -> None:
    program = program_of(Net, net_inputs(rows=64))
    greedy = KernelForm(pointers=(), scratch=(1 << 20,))
    assert stack_bytes(fuse_program(program, lambda _: greedy).graph) > stack_bytes(program.graph)
    kept = fuse_below(program, lambda _: greedy, stack_bytes)
    assert stack_bytes(kept.program.graph) <= stack_bytes(program.graph)
    assert kept.cuts > 0


def test_only_what_raises_the_peak_is_cut() -> None:
    program = program_of(lambda: torch.nn.Sequential(Net(), Net()), {"input": torch.randn(64, 16)})
    wide = next(
        g for c in fuse_program(program, bare_form).calls if is_fused(c.operator) and (g := group_of(c.operator))
    )

    def form_of(group: FusionGroup) -> KernelForm:
        return KernelForm(pointers=(), scratch=(1 << 20,)) if group.digest == wide.digest else BARE

    kept = fuse_below(program, form_of, stack_bytes)
    digests = {group_of(call.operator).digest for call in kept.program.calls if is_fused(call.operator)}
    assert digests
    assert wide.digest not in digests
