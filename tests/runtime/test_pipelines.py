"""Stages of a pipeline as processes of ``gloo``: what torch's allocator holds is the plan's figure of eager."""

from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_real_ranks import outputs_of_ranks
from tests.unit.passes.capture.ranks.test_pipelines import SCHEDULES, STAGES_OF, script_of
from tmmu.eager.peak import eager_figures
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

pytest.importorskip("torch.distributed.pipelining")
RANK = """
import importlib.util, json, sys, warnings
import torch
import torch.distributed as dist
from tests.rank_peaks import peak_of_steps, storages_of

warnings.simplefilter("ignore")
path, store, rank, world = *sys.argv[1:3], *map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
dist.init_process_group = lambda *_: None
spec = importlib.util.spec_from_file_location("pipe", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
inputs = module.inputs()
def kept():
    received = [
        info.buffer
        for stage in module.stages
        for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
        for info in infos
        if info.buffer is not None
    ]
    states = [value for state in module.optimizer.state.values() for value in state.values()]
    return storages_of([*inputs, module.example, *module.parts.parameters(), *states, *received])

replicas = [part for part in module.parts if isinstance(part, torch.nn.parallel.DistributedDataParallel)]
bucket_bytes = sum(parameter.nbytes for part in replicas for parameter in part.parameters())
print(json.dumps(bucket_bytes + peak_of_steps(lambda: module.step(*inputs), kept)))
dist.barrier()
dist.destroy_process_group()
"""


def by_itself(name: str, *, world: int = 2, slow: bool = False) -> Any:
    """A case of ranks that have stages and nothing else."""
    marks = () if slow else (pytest.mark.long,)
    return pytest.param(script_of(name), world, id=f"{name}, {world} ranks", marks=marks)


def spread(name: str, over: str, *, slow: bool = False) -> Any:
    """A case of stages each of which several ranks have."""
    world = prod(STAGES_OF[over]["mesh"].values())
    marks = () if slow else (pytest.mark.long,)
    return pytest.param(script_of(name, **STAGES_OF[over]), world, id=f"{name}, {over}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "world"),
    [
        *(by_itself(name) for name in SCHEDULES),
        by_itself("Schedule1F1B", world=4, slow=True),
        spread("ScheduleInterleavedZeroBubble", "shards", slow=True),
        *(spread("Schedule1F1B", over) for over in ("shards", "columns", "replicas")),
        spread("ScheduleGPipe", "shards"),
        spread("ScheduleInterleaved1F1B", "shards"),
        spread("ScheduleLoopedBFS", "replicas"),
        spread("ScheduleInterleavedZeroBubble", "replicas"),
        spread("ScheduleZBVZeroBubble", "columns"),
        spread("ScheduleDualPipeV", "shards"),
    ],
)
def test_a_rank_of_gloo_holds_what_its_plan_says(tmp_path: Path, text: str, world: int) -> None:
    file = tmp_path / "pipe.py"
    file.write_text(text)
    planned = []
    for rank in range(world):
        request = CaptureRequest(model=f"{file}:step", mode="step", device="cpu", world=world, rank=rank)
        figures = eager_figures(lower_program(capture(request)).graph)
        assert figures is not None
        planned.append(figures.total_bytes)
    assert outputs_of_ranks(RANK, tmp_path, file, world) == planned
