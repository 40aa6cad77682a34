"""Ranks as processes of their own, with gloo: what torch's allocator holds in a step is the plan's figure of eager."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.commands.test_plan_ranks import INPUT_BYTES, REPLICAS, SCRIPT, UNEVEN
from tmmu.eager.peak import eager_figures
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

pytest.importorskip("torch.distributed")
RANK = """
import gc, importlib.util, json, sys, warnings
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from tmmu.runtime.observe.cpu_allocations import CpuAllocationLog

warnings.simplefilter("ignore")
path, store, rank, world = *sys.argv[1:3], *map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
spec = importlib.util.spec_from_file_location("sharded", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
net, (x,) = module.model(), module.inputs()
update = torch.optim.AdamW(net.parameters())

def step():
    net(x).sum().backward()
    update.step()
    net.zero_grad()

for _ in range(2):
    step()
kept = [*net.parameters(), *(value for state in update.state.values() for value in state.values())]
local = [tensor._local_tensor if isinstance(tensor, DTensor) else tensor for tensor in kept]
storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}
gc.collect()
gc.disable()
peaks = []
for _ in range(8):
    log = CpuAllocationLog()
    with log, log.in_call(0):
        step()
    live, level, peak = {}, 0, 0
    for event in log.events:
        if event.bytes > 0:
            live[event.address] = event.bytes
            level += event.bytes
        else:
            level -= live.pop(event.address, 0)
        peak = max(peak, level)
    peaks.append(peak)
buckets = getattr(net, "_get_ddp_logging_data", dict)().get("rebuilt_bucket_sizes", "0")
print(json.dumps(sum(storages.values()) + sum(map(int, buckets.split(","))) + min(peaks)))
dist.barrier()
dist.destroy_process_group()
"""


COMPILED = """
import json, sys
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import tmmu

store, rank, world = sys.argv[2], *map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
torch.manual_seed(rank)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, x):
        whole = functional.all_gather_tensor(self.inner(x), 0, dist.group.WORLD)
        return functional.all_reduce(whole * 2, "sum", dist.group.WORLD) + 1

net, x = Net().eval(), torch.randn(2, 8)
with torch.no_grad():
    expected = net(x)
    ways = [torch.compile(net, backend="tmmu")(x), tmmu.compile(net, (x,))(x)]
print(json.dumps([way.equal(expected) for way in ways]))
dist.destroy_process_group()
"""


def outputs_of_ranks(program: str, folder: Path, script: Path, world: int) -> list[Any]:
    """What each rank prints last, of processes that find each other by a file."""
    command = [sys.executable, "-c", program, str(script), str(folder / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    texts = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, texts
    return [json.loads(out.splitlines()[-1]) for out, _ in texts]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "kind", "world"),
    [
        (SCRIPT, "columns(net, meshes(2))", 2),
        (UNEVEN.replace("257", "255"), "shard(net, meshes(2))", 2),
        (SCRIPT, "shards_of_columns(net, meshes(2, 2))", 4),
        (REPLICAS, "replicas(net)", 2),
        (REPLICAS, "replicas(net, gradient_as_bucket_view=True, static_graph=True)", 2),
    ],
    ids=["columns", "shards of unlike sizes", "four ranks, shards of columns", "replicas", "replicas, one memory"],
)
def test_a_rank_of_gloo_holds_what_its_plan_says(tmp_path: Path, script: str, kind: str, world: int) -> None:
    file = tmp_path / "sharded.py"
    file.write_text(script.replace("{make}", kind))
    planned = []
    for rank in range(world):
        request = CaptureRequest(
            model=str(file), mode="backward", loss="sum", optimizer="adamw", device="cpu", world=world, rank=rank
        )
        figures = eager_figures(lower_program(capture(request)).graph)
        assert figures is not None
        planned.append(figures.total_bytes - INPUT_BYTES)
    # The fewest of eight steps: a thread of gloo may hold what it has sent a little longer than the step needs it.
    assert outputs_of_ranks(RANK, tmp_path, file, world) == planned


@pytest.mark.slow
def test_compiled_models_of_two_ranks_have_the_bits_of_eager(tmp_path: Path) -> None:
    assert outputs_of_ranks(COMPILED, tmp_path, tmp_path, 2) == [[True, True], [True, True]]
