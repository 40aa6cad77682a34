"""Ring attention by processes of ``gloo``: what torch's allocator holds is the plan's figure of eager.

Torch has no ring on a CPU: its attention kernels of a GPU are computed by NumPy here (``tests/ring_kernels.py``), and
all else is torch's own. Plans are for a GPU.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_real_ranks import outputs_of_ranks
from tests.unit.passes.capture.ranks.test_rings import PLAN, SHARDS, captured, script_of
from tmmu.eager.peak import eager_figures
from tmmu.passes.pipeline import lower_program

RANK = """
import importlib.util, json, sys, warnings
import torch
import torch.distributed as dist
from tests.rank_peaks import peak_of_steps, storages_of
from tests.ring_kernels import attention_of_gpu

warnings.simplefilter("ignore")
path, store, rank, world = *sys.argv[1:3], *map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
dist.init_process_group = lambda *_: None
spec = importlib.util.spec_from_file_location("ring", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
batches = []

def kept():
    batches.append(module.inputs())
    states = [value for state in module.optimizer.state.values() for value in state.values()]
    return storages_of([*batches[-1], *module.net.parameters(), *module.net.buffers(), *states])

def step():
    module.step(*(batches[-1] if batches else module.inputs()))

with attention_of_gpu():
    print(json.dumps(peak_of_steps(step, kept)))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "world"),
    [
        ({"mesh": {"cp": 2}, "rotate": "alltoall"}, 2),
        pytest.param({"mesh": {"cp": 4}, "step": PLAN, "length": 256}, 4, marks=pytest.mark.long),
        pytest.param({"mesh": {"dp": 1, "cp": 2}, "spread": SHARDS}, 2, marks=pytest.mark.long),
    ],
    ids=["all to all", "a style of the module, four ranks", "shards"],
)
def test_a_rank_of_gloo_holds_what_its_plan_says(tmp_path: Path, options: dict[str, Any], world: int) -> None:
    """In single precision: for half, kernels of a CPU allocate inside."""
    text, planned = script_of(dtype="float32", **options), []
    for rank in range(world):
        figures = eager_figures(lower_program(captured(tmp_path, text, rank=rank, world=world)).graph)
        assert figures is not None
        planned.append(figures.total_bytes)
    assert outputs_of_ranks(RANK, tmp_path, tmp_path / "ring.py", world) == planned
