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
ROOT = Path(__file__).parents[2]
RANK = """
import importlib.util, json, sys, warnings
import torch
import torch.distributed as dist
from tests.rank_peaks import peak_of_steps, storages_of

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

def kept():
    return storages_of([*net.parameters(), *(value for state in update.state.values() for value in state.values())])

peak = peak_of_steps(step, kept)
buckets = getattr(net, "_get_ddp_logging_data", dict)().get("rebuilt_bucket_sizes", "0")
print(json.dumps(sum(map(int, buckets.split(","))) + peak))
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
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    ranks = [subprocess.Popen([*command, str(rank), str(world)], **pipes) for rank in range(world)]
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
    assert outputs_of_ranks(RANK, tmp_path, file, world) == planned


@pytest.mark.slow
def test_compiled_models_of_two_ranks_have_the_bits_of_eager(tmp_path: Path) -> None:
    assert outputs_of_ranks(COMPILED, tmp_path, tmp_path, 2) == [[True, True], [True, True]]
