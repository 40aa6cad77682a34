"""Models of transformers as one rank has them: what torch's own tracker counts of a real one under the same plan."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tmmu.eager.peak import eager_figures
from tmmu.errors import InvalidConfig
from tmmu.passes.capture.ranks.process_group import process_group
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.huggingface import build, read_config
from tmmu.passes.capture.targets.sharded import as_rank
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

pytest.importorskip("transformers.distributed")
SEQUENCE = 64
IDS_BYTES = 8 * SEQUENCE
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 101,
    "max_position_embeddings": 256, "dtype": "float32",
}  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def tracked_bytes(request: CaptureRequest, folder: Path) -> int:
    """The peak of the third of three training steps of a real model of this rank."""
    from torch.distributed._tools.mem_tracker import MemTracker  # noqa: PLC0415 - it looks for a GPU

    warnings.simplefilter("ignore")  # of a view that is returned; pytest puts the filters back
    assert request.world is not None
    with process_group(request.world, request.rank):
        whole: Any = build(read_config(folder), torch.float32)
        if request.checkpoint:
            whole.gradient_checkpointing_enable({"use_reentrant": False})
        model = as_rank(whole, request).train()
        update, ids = torch.optim.AdamW(model.parameters()), torch.zeros(1, SEQUENCE, dtype=torch.long)

        def step() -> None:
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            update.step()
            model.zero_grad()

        for _ in range(2):
            step()
        tracker = MemTracker()
        tracker.track_external(model, update)
        with tracker:
            step()
        return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


@pytest.mark.parametrize(
    ("tp", "fsdp", "inputs", "checkpoint"),
    [
        (1, 8, 2 * IDS_BYTES, False),
        pytest.param(4, 1, IDS_BYTES, False, marks=pytest.mark.slow),
        pytest.param(2, 4, IDS_BYTES, False, marks=pytest.mark.slow),
        pytest.param(1, 8, 2 * IDS_BYTES, True, marks=pytest.mark.slow),
    ],
    ids=["shards", "columns", "both", "shards, layers again"],
)
def test_a_rank_holds_what_torchs_tracker_counts(
    llama: Path, tp: int, fsdp: int, inputs: int, checkpoint: bool
) -> None:
    """Of 101 rows the last of eight shards has fewer. The ids that columns take apart, the tracker counts itself."""
    world = tp * fsdp
    request = CaptureRequest(
        model=f"hf:{llama}", mode="backward", optimizer="adamw", device="cpu", seq=SEQUENCE,
        world=world, rank=world - 1, tp=tp, fsdp=fsdp, checkpoint=checkpoint,
    )  # fmt: skip
    captured = capture(request)
    assert captured.name.endswith(f", rank {world - 1} of {world}")
    figures = eager_figures(lower_program(captured).graph)
    assert figures is not None
    assert figures.total_bytes - inputs == tracked_bytes(request, llama)


def test_a_cache_has_the_heads_of_its_rank(llama: Path) -> None:
    options = {"model": f"hf:{llama}", "device": "cpu", "decode": True, "cache_len": 32}
    whole, half = (
        capture(CaptureRequest(**options, **ranks))  # type: ignore[arg-type]
        for ranks in ({}, {"world": 2, "tp": 2})
    )
    whole_cache, half_cache = (
        [storage.bytes for storage in captured.storages if storage.role == "state" and "keys" in storage.name]
        for captured in (whole, half)
    )
    assert whole_cache == [2 * size for size in half_cache]
    assert half_cache == [4 * 2 * 32 * 8] * 2, "of two layers, two heads of 32 places and 8 floats"


def test_parts_of_heads_are_refused(llama: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"--tp 8: the model has 4 heads \(num_key_value_heads\)"):
        capture(CaptureRequest(model=f"hf:{llama}", world=8, tp=8))


def test_an_architecture_without_a_plan_is_refused(tmp_path: Path) -> None:
    vit = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32,
           "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(vit))
    with pytest.raises(InvalidConfig, match="has no `tp_plan`"):
        capture(CaptureRequest(model=f"hf:{tmp_path}", world=2, tp=2))
