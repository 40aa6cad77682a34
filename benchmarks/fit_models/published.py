"""Configurations for transformers, as published but for the layers that are named."""

from typing import Final

T5_BASE: Final = ("T5ForConditionalGeneration", {
    "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12,
    "vocab_size": 32128, "n_positions": 512,
})  # fmt: skip
MIXTRAL_4: Final = ("MixtralForCausalLM", {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 4, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "dtype": "bfloat16",
})  # fmt: skip
"""Four of 32 layers."""
