"""Experts on ranks of gloo whose gate is forced: torch's allocator holds in a step what the plan says of eager."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_real_ranks import outputs_of_ranks
from tmmu.eager.peak import eager_figures
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

pytest.importorskip("transformers.distributed")
MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 8,
    "num_experts_per_tok": 2, "vocab_size": 128, "max_position_embeddings": 64, "dtype": "float32",
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 64,
    "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4,
    "topk_group": 2, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "vocab_size": 128, "max_position_embeddings": 64, "dtype": "float32",
}  # fmt: skip
RANK = """
import json, sys, warnings
from fractions import Fraction
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from tests.rank_peaks import peak_of_steps
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.routing.capacity import Filling, Gate, choices_of_tokens
from tmmu.passes.capture.targets.huggingface import build, read_config
from tmmu.passes.capture.targets.sharded import as_rank

warnings.simplefilter("ignore")
path, store, rank, world = *sys.argv[1:3], *map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
options = json.loads(Path(path).read_text())
gate, topk = Gate(tokens=64, choices=2, experts=8), torch.topk
choices = choices_of_tokens(
    gate, gate.capacity(Fraction(options["factor"])), Filling(first=options["first"], reaches_all=True)
)

def forced(scores, *args, **kwargs):
    chosen = topk(scores, *args, **kwargs)
    if scores.shape[-1] == gate.experts:
        chosen.indices.data.copy_(choices)
    return chosen

torch.topk = forced
request = CaptureRequest(model="", world=world, rank=rank, **options["ranks"])
model = as_rank(build(read_config(Path(path).parent), torch.float32), request).train(options["training"])
for tensor in model.parameters():
    (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).data.normal_(std=0.02)
ids = torch.randint(0, 128, (2, 32))

def step():
    if options["training"]:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        model.zero_grad()
    else:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)

print(json.dumps(peak_of_steps(step, dict, steps=6)))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "ranks", "training", "full"),
    [
        (MIXTRAL, {"fsdp": 2, "ep": 2}, False, 0),
        (MIXTRAL, {"tp": 2, "ep": 2}, True, 1),
        (DEEPSEEK, {"fsdp": 2, "ep": 2}, False, 1),
    ],
    ids=["mixtral, tokens exchanged", "mixtral, trained on one batch", "deepseek, tokens exchanged"],
)
def test_a_rank_whose_experts_are_full_holds_what_its_plan_says(
    tmp_path: Path, config: dict[str, Any], ranks: dict[str, int], full: int, *, training: bool
) -> None:
    """Both ranks route so that the experts of one are full; the other, which gets fewer tokens, holds less."""
    options = {"ranks": ranks, "training": training, "factor": "1.25", "first": 4 * full}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "options.json").write_text(json.dumps(options))
    planned = []
    for rank in range(2):
        request = CaptureRequest(
            model=f"hf:{tmp_path}", mode="backward" if training else "inference", device="cpu", batch=2, seq=32,
            world=2, rank=rank, capacity_factor=Fraction(5, 4), **ranks,
        )  # fmt: skip
        figures = eager_figures(lower_program(capture(request)).graph, request.mode)
        assert figures is not None
        planned.append(figures.stack_bytes)
    seen = outputs_of_ranks(RANK, tmp_path, tmp_path / "options.json", 2)
    assert seen[full] == planned[full]
    assert seen[1 - full] < planned[1 - full]
