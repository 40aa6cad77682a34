"""Stages of a pipeline: each rank's own step of a schedule, with its messages as calls that are waited for."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.ir.program import Program
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program
from tmmu.runtime.kernels.collectives import awaited_values, is_awaited, is_message

pytest.importorskip("torch.distributed.pipelining")
SCHEDULES = ("Schedule1F1B", "ScheduleGPipe", "ScheduleInterleaved1F1B")
MICRO_BATCHES = 4
SHAPES = "input_args=(example,), output_args=(example,)"
WAIT = "_c10d_functional.wait_tensor.default"
_SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import SCHEDULE as Schedule

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
PER_RANK = 2 if "Interleaved" in Schedule.__name__ else 1

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 48), nn.Linear(48, 16), nn.LayerNorm(16)
    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

example = torch.zeros(2, 16, requires_grad=True)
parts = nn.ModuleList(Block() for _ in range(PER_RANK))
stages = [
    PipelineStage(part, rank + world * number, world * PER_RANK, torch.device("cpu"), SHAPES)
    for number, part in enumerate(parts)
]
def loss(output, target):
    return (output - target).square().mean()

schedule = Schedule(stages if PER_RANK > 1 else stages[0], 4, loss_fn=loss)
optimizer = torch.optim.SGD(parts.parameters(), momentum=0.9)

def step(x, y):
    losses = []
    first, last = rank == 0, rank == world - 1
    schedule.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))
    optimizer.step()
    optimizer.zero_grad()
    return losses

def inputs():
    return torch.zeros(8, 16), torch.zeros(8, 16)
"""


def script_of(schedule: str, shapes: str = SHAPES) -> str:
    """A training step of ranks with a stage each, or two, of which one has no shape but its own."""
    return re.sub(r"\bSCHEDULE\b", schedule, _SCRIPT.replace("SHAPES", shapes))


def captured(folder: Path, text: str, *, rank: int = 0, world: int = 2) -> CapturedProgram:
    """The step of one rank."""
    (folder / "pipe.py").write_text(text)
    return capture(
        CaptureRequest(model=f"{folder / 'pipe.py'}:step", mode="step", world=world, rank=rank, device="cpu")
    )


def in_flight(program: Program) -> Iterator[int]:
    """After each message that a stage sends forward or gets a gradient for: micro-batches whose gradient is to come.

    Of the first stage, which sends an activation after each forward pass and receives a gradient before each backward.
    """
    count = 0
    for call in program.calls:
        count += {"c10d.send.default": 1, "c10d.recv_.default": -1}.get(str(call.operator), 0)
        yield count


@pytest.mark.parametrize(("schedule", "most"), [("ScheduleGPipe", 4), ("Schedule1F1B", 2)])
def test_as_many_micro_batches_are_in_flight_as_the_schedule_has(tmp_path: Path, schedule: str, most: int) -> None:
    first = captured(tmp_path, script_of(schedule))
    program = lower_program(first)
    assert max(in_flight(program)) == most
    assert first.traffic is not None
    assert first.traffic.bytes == MICRO_BATCHES * 2 * 16 * 4, "what it receives is sent by the other rank"
    kinds = first.rank_kinds
    assert kinds is not None
    assert kinds.kind_of == (0, 1), "ranks have unlike stages"


def test_memory_of_a_message_lives_until_it_is_waited_for(tmp_path: Path) -> None:
    program = lower_program(captured(tmp_path, script_of("Schedule1F1B"), rank=1))
    buffers, under_way = program.graph.values.buffer, list[int]()
    for call in program.calls:
        name = str(call.operator)
        if name in ("c10d.send.default", "c10d.recv_.default"):
            under_way.extend(buffers[tensor.value] for tensor in call.args[0])
        elif name == WAIT:
            under_way.remove(buffers[call.args[0].value])
    assert not under_way
    awaited = awaited_values(program)
    assert all(is_awaited(call, awaited) for call in program.calls if is_message(call) or str(call.operator) == WAIT)
    never = awaited_values(replace(program, calls=tuple(c for c in program.calls if str(c.operator) != WAIT)))
    assert not any(is_awaited(call, never) for call in program.calls if is_message(call))
    assert sum(str(call.operator) == WAIT for call in program.calls) == 2 * MICRO_BATCHES


def test_stages_that_learn_their_shapes_from_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOp, match=r"pipe\.py:\d+: stage 1 of a pipeline is not planned without its shapes"):
        captured(tmp_path, script_of("Schedule1F1B", "input_args=(example,)"), rank=1)


def test_what_torch_refuses_is_said_in_its_words(tmp_path: Path) -> None:
    text = script_of("Schedule1F1B").replace("requires_grad=True", "requires_grad=False")
    with pytest.raises(CaptureFailed, match=r"pipe\.py:\d+: .*Failed to run stage backward"):
        captured(tmp_path, text)
