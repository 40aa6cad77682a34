"""Five architectures at the widths, vocabularies and sequences that are published, in fewer layers."""

from typing import Any, Final

import transformers

from benchmarks.subject import Workload

TINY_LLAMA: Final[dict[str, Any]] = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 2, "num_attention_heads": 32,
    "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
WHISPER_SMALL: Final[dict[str, Any]] = {
    "d_model": 768, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 12,
    "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
}  # fmt: skip


def wide_workload(name: str, *, training: bool) -> Workload:
    """A workload of ``WIDE``, with two or four layers, so that it runs in seconds."""
    model, config, batch, sequence = _model_and_shape(name)
    return Workload(model=model, config=config, dtype="float32", batch=batch, sequence=sequence, training=training)


def _model_and_shape(name: str) -> tuple[str, Any, int, int | None]:
    if name == "GPT-2":
        return "GPT2LMHeadModel", transformers.GPT2Config(n_layer=4), 1, 512
    if name == "Llama":
        return "LlamaForCausalLM", transformers.LlamaConfig(**TINY_LLAMA), 1, 512
    if name == "BERT":
        return "BertForMaskedLM", transformers.BertConfig(num_hidden_layers=4), 2, 512
    if name == "ViT":
        return "ViTForImageClassification", transformers.ViTConfig(num_hidden_layers=4), 8, None
    return "WhisperForConditionalGeneration", transformers.WhisperConfig(**WHISPER_SMALL), 1, 448


WIDE: Final = ("GPT-2", "Llama", "BERT", "ViT", "Whisper")
