"""Stages of a pipeline as processes of ``gloo``: what torch's allocator holds is the plan's figure of eager."""

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_real_ranks import outputs_of_ranks
from tests.unit.passes.capture.ranks.test_pipelines import SCHEDULES, STAGES_OF, script_of
from tests.unit.passes.capture.targets.test_staged import LLAMA, LONG
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
    weights = [*module.parts.parameters(), *module.parts.buffers()]
    return storages_of([*inputs, module.example, *weights, *states, *received])

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


LLAMA_STAGES = """
import json
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from transformers import LlamaConfig, LlamaForCausalLM

SHARDS, BATCH, MICRO_BATCHES, LENGTH = json.loads(Path(__file__).with_name("options.json").read_text())
mesh = init_device_mesh("cpu", (2, SHARDS), mesh_dim_names=("stages", "shards"))
number = mesh["stages"].get_local_rank()
config = LlamaConfig.from_pretrained(Path(__file__).parent)
whole = LlamaForCausalLM(config).train()
half = len(whole.model.layers) // 2
whole.model.layers = whole.model.layers[number * half : (number + 1) * half]
whole.config.num_hidden_layers = half
if not number:
    del whole.lm_head

class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = whole.model
        self.model.norm = nn.Identity()
    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).last_hidden_state

class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.whole = whole
        self.whole.model.embed_tokens = None
    def forward(self, hidden):
        return self.whole(inputs_embeds=hidden, use_cache=False).logits

part = (First, Last)[number]()
if SHARDS > 1:
    shards = mesh["shards"]
    for layer in (whole.model.layers if number else [whole.model.embed_tokens, *whole.model.layers]):
        fully_shard(layer, mesh=shards, reshard_after_forward=True)
    if number:
        fully_shard([whole.model.norm, whole.lm_head], mesh=shards, reshard_after_forward=False)
    fully_shard(part, mesh=shards)

def stage_of():
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    hidden = torch.zeros(BATCH, LENGTH, config.hidden_size, requires_grad=True)
    logits = torch.zeros(BATCH, LENGTH, config.vocab_size, requires_grad=True)
    given, returned = ((ids, hidden), (hidden, logits))[number]
    return PipelineStage(
        part, number, 2, torch.device("cpu"), input_args=given, output_args=returned, group=mesh["stages"].get_group()
    )

def loss(logits, labels):
    return whole.loss_function(logits=logits, labels=labels, vocab_size=config.vocab_size)

example, parts, stages = torch.zeros(0), nn.ModuleList([part]), [stage_of()]
schedule = Schedule1F1B(stages[0], MICRO_BATCHES, loss_fn=loss)
optimizer = torch.optim.AdamW(parts.parameters(), foreach=False)

def step(batch):
    losses = []
    if number:
        schedule.step(target=batch, losses=losses, return_outputs=False)
    else:
        schedule.step(batch, return_outputs=False)
    optimizer.step()
    optimizer.zero_grad()
    return losses

def inputs():
    return (torch.zeros(BATCH * MICRO_BATCHES, LENGTH, dtype=torch.int64),)
"""


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_configuration_in_two_stages_takes_what_ranks_of_a_script_hold(tmp_path: Path, shards: int) -> None:
    """A Llama of four layers, cut by a script of its own. Sequences are long enough for no rank to be fullest in an
    ``all_gather``, in which gloo has the whole result twice.
    """
    pytest.importorskip("transformers.distributed")
    file, world = tmp_path / "pipe.py", 2 * shards
    file.write_text(LLAMA_STAGES)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | LONG))
    (tmp_path / "options.json").write_text(json.dumps([shards, 2, 3, 128]))
    planned = []
    for rank in range(world):
        request = CaptureRequest(
            model=f"hf:{tmp_path}", mode="backward", optimizer="adamw:forloop", device="cpu", batch=2, seq=128,
            world=world, rank=rank, fsdp=shards, pp=2, microbatches=3,
        )  # fmt: skip
        figures = eager_figures(lower_program(capture(request)).graph)
        assert figures is not None
        planned.append(figures.total_bytes)
    assert outputs_of_ranks(RANK, tmp_path, file, world) == planned
