"""Stages of a pipeline as processes of ``gloo``: what torch's allocator holds is the plan's figure of eager."""

from pathlib import Path

import pytest

from tests.runtime.test_real_ranks import outputs_of_ranks
from tests.unit.passes.capture.ranks.test_pipelines import SCHEDULES, script_of
from tmmu.eager.peak import eager_figures
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

pytest.importorskip("torch.distributed.pipelining")
RANK = """
import gc, importlib.util, json, sys, warnings
import torch
import torch.distributed as dist
from tmmu.runtime.observe.cpu_allocations import CpuAllocationLog

warnings.simplefilter("ignore")
path, store, rank, world = *sys.argv[1:3], *map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
dist.init_process_group = lambda *_: None
spec = importlib.util.spec_from_file_location("pipe", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
inputs = module.inputs()
for _ in range(2):
    module.step(*inputs)
received = [
    info.buffer
    for stage in module.stages
    for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
    for info in infos
    if info.buffer is not None
]
states = [value for state in module.optimizer.state.values() for value in state.values()]
kept = [*inputs, module.example, *module.parts.parameters(), *states, *received]
storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
gc.collect()
gc.disable()
peaks = []
for _ in range(8):
    log = CpuAllocationLog()
    with log, log.in_call(0):
        module.step(*inputs)
    live, level, peak = {}, 0, 0
    for event in log.events:
        if event.bytes > 0:
            live[event.address] = event.bytes
            level += event.bytes
        else:
            level -= live.pop(event.address, 0)
        peak = max(peak, level)
    peaks.append(peak)
print(json.dumps(sum(storages.values()) + min(peaks)))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", [pytest.param(name, marks=() if name == "Schedule1F1B" else pytest.mark.long) for name in SCHEDULES]
)
def test_a_rank_of_gloo_holds_what_its_plan_says(tmp_path: Path, schedule: str) -> None:
    file = tmp_path / "pipe.py"
    file.write_text(script_of(schedule))
    planned = []
    for rank in range(2):
        request = CaptureRequest(model=f"{file}:step", mode="step", device="cpu", world=2, rank=rank)
        figures = eager_figures(lower_program(capture(request)).graph)
        assert figures is not None
        planned.append(figures.total_bytes)
    assert outputs_of_ranks(RANK, tmp_path, file, 2) == planned
