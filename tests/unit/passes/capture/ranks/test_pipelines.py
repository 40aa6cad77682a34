"""Stages of a pipeline: each rank's own step of a schedule, with its messages as calls that are waited for."""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

from tmmu.errors import CapacityUndeclared, CaptureFailed, UnsupportedOp
from tmmu.ir.program import Program
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.ranks.pipelines import weight_gradients_in_order
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program
from tmmu.runtime.kernels.collectives import awaited_values, is_awaited, is_message
from tmmu.torch_private import PARAMETER_GROUPS, PIPELINE_BACKWARD, PIPELINE_CHUNKS, PIPELINE_SCHEDULES, FakeTensor

pytest.importorskip("torch.distributed.pipelining")
SCHEDULES = (
    "Schedule1F1B",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleLoopedBFS",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
    "ScheduleDualPipeV",
)
NO_MESH: Mapping[str, int] = MappingProxyType({})
STAGES_OF: dict[str, dict[str, Any]] = {
    "shards": {"mesh": {"stages": 2, "shards": 2}, "part": "shards(block)"},
    "columns": {"mesh": {"stages": 2, "columns": 2}, "part": "columns(block)"},
    "replicas": {"mesh": {"stages": 2, "replicas": 2}, "part": "replicas(block)"},
    "shards of columns": {"mesh": {"stages": 2, "shards": 2, "columns": 2}, "part": "shards(columns(block))"},
}
"""By what a stage is spread over: a mesh of two stages, and what makes a stage of its block."""
MICRO_BATCHES = 4
SHAPES = "input_args=(example,), output_args=(example,)"
WAIT = "_c10d_functional.wait_tensor.default"
_SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import SCHEDULE as Schedule
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("nccl")
if MESH:
    mesh = init_device_mesh("cpu", tuple(MESH.values()), mesh_dim_names=tuple(MESH))
    rank, world, group = mesh["stages"].get_local_rank(), mesh["stages"].size(), mesh["stages"].get_group()
else:
    rank, world, group = dist.get_rank(), dist.get_world_size(), None
IS_FOLDED = Schedule.__name__ in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
PER_RANK = 1 if Schedule.__name__ in ("ScheduleGPipe", "Schedule1F1B") else 2
COUNT = world * PER_RANK
indices = [rank, COUNT - 1 - rank] if IS_FOLDED else [rank + world * number for number in range(PER_RANK)]

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 48), nn.Linear(48, 16), nn.LayerNorm(16)
    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

def columns(block):
    return parallelize_module(block, mesh["columns"], {"up": ColwiseParallel(), "down": RowwiseParallel()})

def shards(block):
    return fully_shard(block, mesh=mesh["shards"])

def replicas(block, **options):
    return nn.parallel.DistributedDataParallel(block, process_group=mesh["replicas"].get_group(), **options)

example = torch.zeros(2, 16, requires_grad=True)
torch.manual_seed(0)
blocks = [Block() for _ in range(COUNT)]
parts = nn.ModuleList(PART for block in (blocks[index] for index in indices))
del blocks
stages = [
    PipelineStage(part, index, COUNT, torch.device("cpu"), SHAPES, group=group)
    for index, part in zip(indices, parts)
]
def loss(output, target):
    return (output - target).square().mean()

schedule = Schedule(stages if PER_RANK > 1 else stages[0], MICRO_BATCHES, loss_fn=loss)
optimizer = torch.optim.SGD(parts.parameters(), momentum=0.9)

def step(x, y):
    losses = []
    first, last = 0 in indices, COUNT - 1 in indices
    schedule.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))
    optimizer.step()
    optimizer.zero_grad()
    return losses

def inputs():
    return torch.zeros(2 * MICRO_BATCHES, 16), torch.zeros(2 * MICRO_BATCHES, 16)
"""


def script_of(
    schedule: str,
    shapes: str = SHAPES,
    *,
    mesh: Mapping[str, int] = NO_MESH,
    part: str = "block",
    micro: int = MICRO_BATCHES,
) -> str:
    """A training step of ranks with a stage each, or two, of which one has no shape but its own.

    ``mesh`` has the sizes of its dimensions by name, of which ``stages`` is one; ``part`` makes a stage of its block.
    """
    names = {
        "SCHEDULE": schedule,
        "SHAPES": shapes,
        "MESH": repr(dict(mesh)),
        "PART": part,
        "MICRO_BATCHES": str(micro),
    }
    return re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[0]], _SCRIPT)


def captured(folder: Path, text: str, *, rank: int = 0, world: int = 2) -> CapturedProgram:
    """The step of one rank."""
    (folder / "pipe.py").write_text(text)
    return capture(
        CaptureRequest(model=f"{folder / 'pipe.py'}:step", mode="step", world=world, rank=rank, device="cpu")
    )


def in_flight(program: Program, following: int = 1) -> Iterator[int]:
    """After each message to or from the stage of that rank: micro-batches whose gradient is to come from it."""
    count = 0
    for call in program.calls:
        if is_message(call) and call.args[2] == following:
            count += {"c10d.send.default": 1, "c10d.recv_.default": -1}[str(call.operator)]
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


def test_the_second_stage_of_four_has_one_micro_batch_less_in_flight_than_the_first(tmp_path: Path) -> None:
    second = captured(tmp_path, script_of("Schedule1F1B"), rank=1, world=4)
    assert max(in_flight(lower_program(second), following=2)) == 3
    assert second.rank_kinds is not None
    assert second.rank_kinds.kind_of == (0, 1, 2, 3)
    assert second.traffic is not None
    assert second.traffic.bytes == 2 * MICRO_BATCHES * 2 * 16 * 4, "activations to the next, gradients to the first"


@pytest.mark.parametrize(
    "spread", [pytest.param(name, marks=() if name == "shards" else pytest.mark.long) for name in STAGES_OF]
)
def test_ranks_of_one_stage_are_one_kind(tmp_path: Path, spread: str) -> None:
    world = prod(STAGES_OF[spread]["mesh"].values())
    program = captured(tmp_path, script_of("Schedule1F1B", micro=2, **STAGES_OF[spread]), rank=world // 2, world=world)
    assert program.rank_kinds is not None
    assert program.rank_kinds.kind_of == (0,) * (world // 2) + (1,) * (world // 2)


def test_gradients_of_weights_come_apart_in_the_order_of_the_weights(tmp_path: Path) -> None:
    """A trace of a step that has no order of its own is refused: it does otherwise each time."""
    program = captured(tmp_path, script_of("ScheduleZBVZeroBubble", micro=2), rank=1)
    assert program.rank_kinds is not None
    assert program.rank_kinds.kind_of == (0, 1)


def test_nodes_that_torch_has_in_sets_are_in_one_order() -> None:
    parting: Any = import_module(PIPELINE_BACKWARD)
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))
    given = torch.zeros(2, 4, requires_grad=True)
    weights = [weight.view_as(weight).grad_fn.next_functions[0][0] for weight in net.parameters()]
    beginning = given.view_as(given).grad_fn
    assert beginning is not None
    output = net(given)
    edges = parting.construct_reverse_graph([output.grad_fn])
    with weight_gradients_in_order():
        groups = getattr(parting, PARAMETER_GROUPS)([beginning.next_functions[0][0]], weights, edges)
    assert [weight for group in groups for weight in group["params"]] == weights
    assert all(len(group["intermediates"]) == 1 for group in groups)
    assert getattr(parting, PARAMETER_GROUPS).__module__ == PIPELINE_BACKWARD


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


def test_replicas_of_a_static_graph_are_refused_as_torch_fails_with_them(tmp_path: Path) -> None:
    spread = STAGES_OF["replicas"] | {"part": "replicas(block, static_graph=True)"}
    with pytest.raises(UnsupportedOp, match=r"pipe\.py:\d+: stage 0 of a pipeline .* static_graph: torch would"):
        captured(tmp_path, script_of("Schedule1F1B", **spread), world=4)


LATE = """
import torch
import torch.distributed as dist

def step(x):
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import ScheduleGPipe
    part, example = torch.nn.Linear(4, 4), torch.zeros(2, 4, requires_grad=True)
    stage = PipelineStage(part, dist.get_rank(), 2, torch.device("cpu"), SHAPES)
    ScheduleGPipe(stage, 2).step(x)

def inputs():
    return torch.zeros(4, 4)
"""


def test_schedules_that_only_the_step_imports_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, PIPELINE_SCHEDULES)
    program = captured(tmp_path, LATE.replace("SHAPES", SHAPES))
    assert program.rank_kinds is not None
    assert program.rank_kinds.kind_of == (0, 1)
    monkeypatch.delitem(sys.modules, PIPELINE_SCHEDULES)
    with pytest.raises(UnsupportedOp, match=r"pipe\.py:\d+: stage 0 of a pipeline is not planned without its shapes"):
        captured(tmp_path, LATE.replace("SHAPES", "input_args=(example,)"))


COUNTING = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 4)
    def forward(self, x):
        BODY

example = torch.zeros(2, 4, requires_grad=True)
part = Gated()
stage = PipelineStage(part, dist.get_rank(), 2, torch.device("cpu"), SHAPES)
schedule = ScheduleGPipe(stage, 2)

def step(x):
    schedule.step(x)

def inputs():
    return torch.zeros(4, 4)
"""


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (
            "return x[: int(torch.topk(self.gate(x), 2).indices.bincount(minlength=4).tolist()[0])]",
            CapacityUndeclared, r"pipe\.py:12: what is counted here is data",
        ),
        ("raise LookupError('no such thing')", CaptureFailed, r"pipe\.py:12: LookupError: no such thing"),
    ],
    ids=["a look at a count", "an error of its own"],
)  # fmt: skip
def test_what_a_stage_raises_is_said_and_not_what_torch_puts_around_it(
    tmp_path: Path, body: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        captured(tmp_path, COUNTING.replace("SHAPES", SHAPES).replace("BODY", body))


def test_a_tensor_that_torch_makes_as_it_is_imported_is_none_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = LATE.replace("SHAPES", SHAPES)
    before = captured(tmp_path, text).eager
    for name in (PIPELINE_SCHEDULES, PIPELINE_CHUNKS):
        monkeypatch.delitem(sys.modules, name)
    after = captured(tmp_path, text).eager
    assert before is not None
    assert after is not None
    assert after.persistent_bytes == before.persistent_bytes
    assert not isinstance(sys.modules[PIPELINE_CHUNKS].sum_reducer.init_value, FakeTensor)
