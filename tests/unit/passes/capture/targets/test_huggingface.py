"""Hugging Face configurations: sizes, inputs, decode steps over a static cache, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tmmu.eager.peak import eager_figures
from tmmu.errors import InvalidConfig, TmmuError, UnsupportedOp
from tmmu.ir.graph import Graph
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "max_position_embeddings": 16384, "dtype": "bfloat16",
}  # fmt: skip

VIT: dict[str, Any] = {
    "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32, "patch_size": 8,
}  # fmt: skip
T5: dict[str, Any] = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64,
    "num_layers": 1, "num_heads": 4, "vocab_size": 100,
}  # fmt: skip


def graph_of(folder: Path, config: dict[str, Any] = LLAMA, **options: Any) -> Graph:
    (folder / "config.json").write_text(json.dumps(config))
    return lower_program(capture(CaptureRequest(model=f"hf:{folder}", **options))).graph


def test_llama_at_8192_tokens_on_cuda_holds_no_scores(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, seq=8192)
    scores = 8192 * 8192
    assert max(b for b, r in zip(graph.buffers.bytes, graph.buffers.role, strict=True) if r == "activation") < scores
    assert graph.ops.target.count("aten._scaled_dot_product_flash_attention.default") == 2
    assert set(graph.notes.ops.phase) == {"llm_prefill"}
    assert set(graph.notes.ops.modality) == {"text"}


def test_decode_step_updates_its_cache_in_place(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, decode=True, cache_len=128, batch=3)
    cache = [i for i, n in enumerate(graph.notes.buffers) if n.endswith((".keys", ".values"))]
    assert [graph.buffers.role[i] for i in cache] == ["state"] * 4
    assert [graph.buffers.bytes[i] for i in cache] == [3 * 2 * 128 * 16 * 2] * 4
    written = {graph.values.buffer[v] for vs in graph.ops.writes for v in vs}
    assert set(cache) <= written
    copies = [b for b, r in zip(graph.buffers.bytes, graph.buffers.role, strict=True) if r == "activation"]
    assert max(copies) < graph.buffers.bytes[cache[0]]
    assert set(graph.notes.ops.phase) == {"llm_decode"}


def test_batch_sequence_and_dtype_reach_the_inputs(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, batch=3, seq=5, dtype="float32")
    assert graph.values.shape[graph.inputs[0]] == (3, 5)
    assert "float32" in graph.values.dtype
    assert "bfloat16" not in graph.values.dtype


def test_training_step_takes_labels(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, seq=16, mode="backward")
    names = [graph.notes.buffers[graph.values.buffer[v]] for v in graph.inputs]
    assert names == ["input_ids", "labels"]
    assert set(graph.notes.ops.phase) == {"training"}


def test_layers_that_run_again_hold_less(tmp_path: Path) -> None:
    kept, again = (graph_of(tmp_path, seq=64, mode="backward", checkpoint=checkpoint) for checkpoint in (False, True))
    assert sum(again.notes.ops.flops) > sum(kept.notes.ops.flops)
    held = [figures.stack_bytes for graph in (kept, again) if (figures := eager_figures(graph)) is not None]
    assert held[1] < held[0]


def test_tied_embeddings_are_one_buffer(tmp_path: Path) -> None:
    untied, tied = (graph_of(tmp_path, LLAMA | {"tie_word_embeddings": tie}, seq=4) for tie in (False, True))
    assert tied.buffers.role.count("parameter") == untied.buffers.role.count("parameter") - 1


def test_encoder_decoder_that_names_no_architecture_is_no_decoder_alone(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "vocab_size": 50, "num_mel_bins": 4, "max_source_positions": 10, "max_target_positions": 8}
    halves = {
        f"{half}_{name}": 1 for half in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")
    }
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    graph = graph_of(tmp_path, {"model_type": "whisper"} | sizes | halves | tokens)
    names = [graph.notes.buffers[graph.values.buffer[v]] for v in graph.inputs]
    assert names == ["input_features", "decoder_input_ids"]


def test_encoder_decoder_gets_both_inputs(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, T5, seq=8)
    assert [graph.notes.buffers[graph.values.buffer[v]] for v in graph.inputs] == ["input_ids", "decoder_input_ids"]


def test_vision_model_gets_pixels_of_its_size(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, VIT, batch=2)
    assert graph.values.shape[graph.inputs[0]] == (2, 3, 32, 32)
    assert set(graph.notes.ops.modality) == {"vision"}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("{", {}),
        ("[]", {}),
        ('{"model_type": "no_such_model"}', {}),
        (json.dumps(LLAMA), {"dtype": "float31"}),
        (json.dumps(LLAMA), {"decode": True, "mode": "backward"}),
        (json.dumps(LLAMA), {"settings": (("seq", "3"),)}),
        (json.dumps(LLAMA), {"seq": 16385}),
        (json.dumps(LLAMA), {"decode": True, "seq": 4}),
        (json.dumps(VIT), {"seq": 4}),
    ],
)
def test_options_that_contradict_are_refused(tmp_path: Path, text: str, options: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidConfig) as caught:
        capture(CaptureRequest(model=f"hf:{tmp_path}", **options))
    assert "\n" not in str(caught.value)


def test_missing_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TmmuError, match="no config"):
        capture(CaptureRequest(model=f"hf:{tmp_path}"))


def test_decode_step_of_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TmmuError, match="encoder-decoder"):
        graph_of(tmp_path, T5, decode=True, cache_len=8)


def test_prefill_keeps_no_cache(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, T5, seq=8)
    assert not [line for line in graph.notes.ops.source if "cache_utils" in line]


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "fp8"])
def test_quantized_weights_are_refused_by_the_name_of_their_method(tmp_path: Path, method: str) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": method, "load_in_4bit": True, "bits": 4}}
    with pytest.raises(UnsupportedOp, match=f"quantized by {method} "):
        graph_of(tmp_path, config)
