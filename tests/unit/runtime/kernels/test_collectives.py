"""Calls between ranks in planned memory, in a group of one real process; and programs whose group is not there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tmmu.errors import TmmuError
from tmmu.ir.program import Call, Program, RankGroup
from tmmu.passes.capture.ranks.process_group import process_group
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture_live
from tmmu.passes.lowering.read_calls import read_program
from tmmu.passes.pipeline import lower_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed
from tmmu.runtime.compare.reference import ReferenceExecutor
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import run_launches
from tmmu.runtime.kernels.code import runnable_of
from tmmu.runtime.kernels.collectives import code_between_ranks, on_running_groups
from tmmu.runtime.steps.launch_plan import Launch

distributed = pytest.importorskip("torch.distributed")
functional = pytest.importorskip("torch.distributed._functional_collectives")
TOKEN = token_from_seed(0)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Any]:
    """A process group of this process alone, whose collectives are real."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


CALLS = {
    "all_reduce": ("sum",),
    "broadcast": (0,),
    "all_gather_into_tensor": (1,),
    "reduce_scatter_tensor": ("sum", 1),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("place", ["apart", "same", "half", "strided"])
def test_results_are_where_the_plan_says(group: Any, name: str, place: str, is_awaited: bool) -> None:
    memory = torch.full((24,), -1.0)
    source = memory[0:8]
    source.copy_(torch.arange(8.0))
    target = {"apart": memory[8:16], "same": source, "half": memory[4:12], "strided": memory[8:24:2]}[place]
    operator = getattr(torch.ops._c10d_functional, name).default
    call = Call(operator=operator, args=(), kwargs=(), results=(1,))
    arguments = (source, *CALLS[name], group.group_name)
    code = code_between_ranks(call, arguments, {}, [target], is_awaited_later=is_awaited)
    is_direct = place in ("apart", "same") if name in ("all_reduce", "broadcast") else place == "apart"
    assert (code[-1].operator is not operator) == is_direct
    assert code[-1].waits or (is_awaited and is_direct and name in ("all_reduce", "broadcast"))
    runnable_of(code)()
    torch.ops._c10d_functional.wait_tensor.default(target)
    assert target.tolist() == [*range(8)]
    assert place == "half" or source.tolist() == [*range(8)], "an argument is as it was"


class Reduces(nn.Module):
    """Two collectives, each waited for where its result is read."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        reduced = functional.all_reduce(self.inner(x), "sum", distributed.group.WORLD)
        return torch.cat([functional.all_gather_tensor(reduced * 2, 0, distributed.group.WORLD)])


def program_of(world: int, rank: int) -> Program:
    """The program of one rank."""
    request = CaptureRequest(model="", device="cpu", world=world, rank=rank)
    return lower_program(capture_live(Reduces, (torch.zeros(2, 8),), request))


def bound(program: Program) -> Any:
    """Its executor, in a plan of its own."""
    weights = {name: torch.ones(shape) for name, shape in (("inner.weight", (8, 8)), ("inner.bias", (8,)))}
    plan = prepare_memory(program.graph, mode="inference", preset="inference", token=TOKEN, arenas=default_arenas())
    return bind(program, plan, token=TOKEN, weights=weights)


def test_a_rank_of_one_has_the_bits_of_a_run_without_a_plan(group: Any) -> None:
    program = program_from_running_group(group)
    executor = bound(program)
    x = torch.arange(16.0).reshape(2, 8)
    (planned,) = executor.run({"x": x})
    weights = {name: torch.ones(shape) for name, shape in (("inner.weight", (8, 8)), ("inner.bias", (8,)))}
    reference = ReferenceExecutor(program, weights)
    reference.run(executor.order, {"x": x})
    assert planned.equal(reference.value(executor.outputs[0]))
    assert planned.equal((x.sum(1, keepdim=True) + 1).expand(2, 8) * 2)
    ranked = [step for step in executor.bound.steps if step.is_between_ranks]
    assert len(ranked) == 4
    assert not any(step.is_settled for step in ranked), "none was made while the plan was bound, and none is captured"


def program_from_running_group(group: Any) -> Program:
    """A trace in the group that this process has."""
    program = lower_program(capture_live(Reduces(), (torch.zeros(2, 8),), CaptureRequest(model="", device="cpu")))
    groups = {value for call in program.calls for value in call.args if isinstance(value, RankGroup)}
    assert groups == {RankGroup(group.group_name, (0,), 0, 1)}
    return program


def test_a_program_of_many_ranks_needs_their_group() -> None:
    program = program_of(4, 1)
    with pytest.raises(TmmuError, match=r"INVALID_CONFIG: the program is rank 1 of 4, and this process has no process"):
        bound(program)
    with process_group(4, 2), pytest.raises(TmmuError, match=r"rank 1 of 4, and this process is rank 2 of 4"):
        bound(program)
    others = replace(program, calls=tuple(map(in_a_part, program.calls)))
    with process_group(4, 1), pytest.raises(TmmuError, match=r"no process group of this process has the ranks 1, 3"):
        on_running_groups(others)
    with process_group(4, 1):
        distributed.new_group([1, 3])
        (name,) = {call.args[-1] for call in on_running_groups(others).calls if "reduce" in str(call.operator)}
        assert name != "0"


def in_a_part(call: Call) -> Call:
    """The call among ranks 1 and 3 alone."""
    return replace(call, args=tuple(replace(v, members=(1, 3)) if isinstance(v, RankGroup) else v for v in call.args))


def test_a_program_of_a_file_does_not_say_who_is_in_a_group(group: Any) -> None:
    graph = program_from_running_group(group).graph
    with pytest.raises(TmmuError, match=r"UNSUPPORTED_OP: op \d+ _c10d_functional.all_reduce.default .* no file says"):
        bound(read_program(graph))


def test_a_call_that_fails_is_made_once(group: Any) -> None:
    bound_program = bound(program_from_running_group(group)).bound
    position = next(i for i, step in enumerate(bound_program.steps) if "all_reduce" in step.name)
    calls: list[int] = []

    def fail() -> None:
        calls.append(position)
        raise RuntimeError("connection closed by peer")

    with pytest.raises(TmmuError, match=r"all_reduce.default .*closed by peer \(see what the other ranks say\)"):
        run_launches(bound_program, [Launch(first=position, last=position + 1, run=fail)])
    assert calls == [position], "the other ranks would make no second one"
