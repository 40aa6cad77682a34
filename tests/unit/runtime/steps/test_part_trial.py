"""Parts of products beside the whole: those that have its bits on this device, and those that have not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.runtime.harness import same_bits
from tests.unit.planner.fit.head_models import BATCH, LENGTH, head_step
from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId
from tmmu.ir.rewrite import PLACED, Rewrite
from tmmu.passes.lowering.read_calls import read_program
from tmmu.planner.fit.head_parts import head_parts
from tmmu.runtime.steps import part_trial
from tmmu.runtime.steps.part_trial import differing_parts

CPU = torch.device("cpu")
calls: list[int] = []


def products(base: Graph, rewrite: Rewrite) -> list[OpId]:
    return [
        op for op in dict.fromkeys(rewrite.origin) if base.ops.target[op] in ("aten.mm.default", "aten.addmm.default")
    ]


def counted(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], list[torch.Tensor]]:
    """Calls of products, whose results of fewer rows than all are changed."""
    run = part_trial.call_results

    def results(instr: Any) -> list[torch.Tensor]:
        (result,) = run(instr)
        calls.append(result.shape[0])
        return [result if result.shape[0] == BATCH * LENGTH else change(result)]

    return results


@pytest.mark.parametrize("name", ["tied", "short floats", "with a bias", "capped"])
def test_parts_of_this_device_have_the_bits_of_the_whole(name: str) -> None:
    base = head_step(name)
    state = torch.get_rng_state()
    assert differing_parts(read_program(base), head_parts(base, 6, smallest=1), CPU) == []
    assert torch.equal(state, torch.get_rng_state())


def test_each_size_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    base = head_step("tied")
    calls.clear()
    monkeypatch.setattr(part_trial, "call_results", counted(lambda result: result))
    differing_parts(read_program(base), head_parts(base, 6, smallest=1), CPU)
    assert calls.count(BATCH * LENGTH) == 2
    assert len(calls) <= 2 + 2 * 6


def test_parts_with_other_bits_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    base = head_step("tied")
    rewrite = head_parts(base, 6, smallest=1)
    monkeypatch.setattr(part_trial, "call_results", counted(lambda result: result.nextafter(result + 1)))
    differing = differing_parts(read_program(base), rewrite, CPU)
    cut = [rewrite.origin[row] for row, kind in enumerate(rewrite.kind) if kind in ("part", PLACED)]
    assert set(differing) == {op for op in products(base, rewrite) if op in cut}
    assert len(differing) == 2


def test_draws_are_the_same_each_time() -> None:
    base = head_step("tied")
    windows = part_trial._windows(base, OpId(base.ops.target.index("aten.mm.default")))[0]
    first, second = list(part_trial._drawn(windows, CPU)), list(part_trial._drawn(windows, CPU))
    assert all(map(same_bits, first, second))
    assert not same_bits(first[0], torch.zeros_like(first[0]))
