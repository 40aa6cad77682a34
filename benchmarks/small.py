"""The same architectures small: every class, option and dtype of the corpus, at widths that a CPU runs in a second."""

from collections.abc import Mapping
from typing import Any, Final

import transformers

from benchmarks.architectures import Architecture

VOCABULARY: Final = 128
SEQUENCE: Final = 16
BATCH: Final = 2
IMAGE_TOKEN: Final = 120
"""The token that stands for a patch of an image."""

SIZES: Final[Mapping[str, int]] = {
    "hidden_size": 64, "n_embd": 64, "d_model": 64, "dim": 64, "embed_dim": 16, "word_embed_proj_dim": 64,
    "embedding_size": 64, "pooler_hidden_size": 64, "projection_dim": 64, "image_text_hidden_size": 32,
    "intermediate_size": 96, "ffn_dim": 96, "d_ff": 96, "hidden_dim": 96, "ffn_hidden_size": 96,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "moe_intermediate_size": 32, "decoder_hidden_size": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "num_decoder_layers": 2,
    "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "d_kv": 16, "rotary_dim": 8,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "vocab_size": VOCABULARY, "max_position_embeddings": 64, "n_positions": 64, "sliding_window": 8,
    "local_attention": 8, "window_size": 8, "position_buckets": 8, "image_size": 32, "patch_size": 8,
    "max_source_positions": 24, "max_target_positions": 64, "num_queries": 10, "query_pre_attn_scalar": 16,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "state_size": 8, "time_step_rank": 8,
    "classifier_proj_size": 32, "num_feat_extract_layers": 7,
}  # fmt: skip
"""By the name of a configuration's size, its small value."""

OVERRIDES: Final[Mapping[str, Mapping[str, Any]]] = {
    "Llama 3.1 70B": {"num_key_value_heads": 1},
    "Llama 3.1 405B": {"num_attention_heads": 8, "head_dim": 8, "num_key_value_heads": 4},
    "Pythia 1.4B": {"num_attention_heads": 2, "hidden_size": 32},
    "Gemma 2B": {"num_key_value_heads": 1},
    "Gemma 3 4B (text)": {"layer_types": ["sliding_attention", "full_attention"]},
    "SmolLM 3 3B": {"no_rope_layers": [1, 0]},
    "ModernBERT base": {"layer_types": ["full_attention", "sliding_attention"]},
    "Phi-2": {"num_key_value_heads": 4},
    "OLMo 2 7B": {"num_key_value_heads": 4},
    "Cohere Command R": {"num_key_value_heads": 4},
    "DeepSeek V2 Lite": {"q_lora_rank": None, "num_key_value_heads": 4},
    "DeepSeek V3": {"num_key_value_heads": 4, "n_group": 2, "head_dim": 8},
    "GPT-Neo 1.3B": {"attention_types": [[["global", "local"], 1]]},
    "Mamba 2 2.7B": {"num_heads": 8, "head_dim": 16, "chunk_size": 8},
    "Swin tiny": {"depths": [1, 2], "num_heads": [2, 4], "patch_size": 4, "window_size": 4, "image_size": 64},
    "ConvNeXt tiny": {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 2, 1], "patch_size": 4, "image_size": 64},
    "ResNet-50": {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 2, 1]},
    "MobileNet V2": {"depth_multiplier": 0.35, "image_size": 64},
    "SegFormer B0": {
        "hidden_sizes": [16, 24, 32, 40], "num_attention_heads": [1, 2, 2, 4], "patch_size": None, "image_size": 64
    },
    "DETR ResNet-50": {
        "backbone_config": {
            "model_type": "resnet", "out_features": ["stage4"], "embedding_size": 16,
            "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 2, 1],
        },
    },
    "LLaVA 1.5 7B": {"image_seq_length": 16},
    "Wav2Vec2 base": {"conv_dim": [32] * 7},
    "HuBERT base": {"conv_dim": [32] * 7},
}  # fmt: skip
"""By architecture, values that replace those above."""


def small_config(architecture: Architecture) -> Any:
    """The configuration with small sizes; published options that are not sizes stay."""
    kind = getattr(transformers, architecture.config)
    sizes = architecture.sizes | small_sizes_of(kind, architecture.sizes) | OVERRIDES.get(architecture.name, {})
    return kind(**sizes)


def small_sizes_of(kind: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Small values for all sizes of a class of configurations, nested configurations included."""
    default = kind(**sizes)
    own = default.to_dict()
    small_sizes: dict[str, Any] = {name: size for name, size in SIZES.items() if type(own.get(name)) is int}
    for name, value in own.items():
        if name.endswith(("token_id", "token_index")) and isinstance(value, int) and value >= VOCABULARY:
            small_sizes[name] = IMAGE_TOKEN if name.startswith("image") else 2
    for name in getattr(default, "sub_configs", {}):
        part = getattr(default, name, None)
        if part is not None and name != "backbone_config":
            small_sizes[name] = {"model_type": part.model_type} | small_sizes_of(type(part), {})
    return small_sizes
