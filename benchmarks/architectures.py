"""Architectures that transformers ships, at published sizes: what the corpus benchmark plans.

Where a configuration class's defaults are a published model, nothing is overridden.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One model: its class, its configuration, and the workload."""

    name: str
    model: str
    config: str
    sizes: dict[str, Any] = field(default_factory=dict)
    seq: int | None = None
    dtype: str = "bfloat16"


def _llama(  # noqa: PLR0913, PLR0917 - the six sizes of a published table
    layers: int, width: int, inner: int, heads: int, kv: int = 8, vocab: int = 128256
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
    }


def _text(name: str, prefix: str, sizes: dict[str, Any] | None = None, *, seq: int = 2048) -> Architecture:
    return Architecture(name=name, model=f"{prefix}ForCausalLM", config=f"{prefix}Config", sizes=sizes or {}, seq=seq)


DEEPSEEK_V3 = {"num_hidden_layers": 61, "max_position_embeddings": 4096}
DEEPSEEK_V2_LITE = {
    "num_hidden_layers": 27, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64, "num_experts_per_tok": 6,
    "n_shared_experts": 2, "kv_lora_rank": 512, "q_lora_rank": None, "first_k_dense_replace": 1, "vocab_size": 102400,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
BLOOM = {"n_layer": 70, "hidden_size": 14336, "n_head": 112, "vocab_size": 250880}
FALCON_7B = {"num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71, "multi_query": True}
NEOX_20B = {"num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64, "intermediate_size": 24576}
OPT_67B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "ffn_dim": 16384,
    "word_embed_proj_dim": 4096,
}
QWEN25_7B = {**_llama(28, 3584, 18944, 28, 4, 152064), "max_position_embeddings": 32768}
QWEN3_8B = {**_llama(36, 4096, 12288, 32, 8, 151936), "head_dim": 128, "max_position_embeddings": 40960}
QWEN3_MOE = {
    **_llama(48, 2048, 6144, 32, 4, 151936), "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8,
}  # fmt: skip
GEMMA2_9B = {
    "num_hidden_layers": 42, "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256,
}  # fmt: skip
GEMMA3_4B = {
    "num_hidden_layers": 34, "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256,
}  # fmt: skip

ARCHITECTURES: tuple[Architecture, ...] = (
    _text("Llama 3.1 8B", "Llama", _llama(32, 4096, 14336, 32)),
    _text("Llama 3.1 70B", "Llama", _llama(80, 8192, 28672, 64)),
    _text("Llama 3.1 405B", "Llama", _llama(126, 16384, 53248, 128)),
    _text("Qwen 2.5 7B", "Qwen2", QWEN25_7B),
    _text("Qwen 3 8B", "Qwen3", QWEN3_8B),
    _text("Qwen 3 30B-A3B", "Qwen3Moe", QWEN3_MOE),
    _text("Mistral 7B", "Mistral"),
    _text("Mixtral 8x7B", "Mixtral"),
    _text("Gemma 2B", "Gemma", {**_llama(18, 2048, 16384, 8, 1, 256000), "head_dim": 256}),
    _text("Gemma 2 9B", "Gemma2", GEMMA2_9B),
    Architecture(
        name="Gemma 3 4B (text)", model="Gemma3ForCausalLM", config="Gemma3TextConfig", sizes=GEMMA3_4B, seq=2048
    ),
    _text("Phi-2", "Phi", {"num_hidden_layers": 32, "hidden_size": 2560, "intermediate_size": 10240}),
    _text("Phi-3 mini", "Phi3"),
    _text("OLMo 2 7B", "Olmo2", {"vocab_size": 100352}),
    _text("Falcon 7B", "Falcon", FALCON_7B),
    _text("BLOOM 176B", "Bloom", BLOOM),
    _text("DeepSeek V2 Lite", "DeepseekV2", DEEPSEEK_V2_LITE),
    _text("DeepSeek V3", "DeepseekV3", DEEPSEEK_V3),
    _text("GPT-NeoX 20B", "GPTNeoX", NEOX_20B),
    _text(
        "Pythia 1.4B",
        "GPTNeoX",
        {
            "num_hidden_layers": 24,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "intermediate_size": 8192,
            "vocab_size": 50304,
        },
    ),
    _text("OPT 6.7B", "OPT", OPT_67B),
    _text("StableLM 3B", "StableLm"),
    _text("Cohere Command R", "Cohere"),
    _text("Granite", "Granite"),
    _text("StarCoder 2", "Starcoder2"),
    _text("GLM 4 9B", "Glm"),
    _text("Nemotron 4 15B", "Nemotron", {"num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128}),
    _text("SmolLM 3 3B", "SmolLM3"),
    _text("OLMoE 1B-7B", "Olmoe"),
    Architecture(name="GPT-2", model="GPT2LMHeadModel", config="GPT2Config", seq=1024, dtype="float32"),
    Architecture(name="GPT-J 6B", model="GPTJForCausalLM", config="GPTJConfig", seq=2048, dtype="float16"),
    Architecture(name="GPT-Neo 1.3B", model="GPTNeoForCausalLM", config="GPTNeoConfig", seq=2048),
    Architecture(
        name="Mamba 2.8B",
        model="MambaForCausalLM",
        config="MambaConfig",
        sizes={"num_hidden_layers": 64, "hidden_size": 2560},
        seq=64,
    ),
    Architecture(
        name="Mamba 2 2.7B",
        model="Mamba2ForCausalLM",
        config="Mamba2Config",
        sizes={
            "num_hidden_layers": 64,
            "hidden_size": 2560,
            "num_heads": 80,
            "head_dim": 64,
            "n_groups": 1,
            "vocab_size": 50288,
        },
        seq=512,
    ),
    Architecture(
        name="T5 base",
        model="T5ForConditionalGeneration",
        config="T5Config",
        sizes={"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    ),
    Architecture(name="BART large", model="BartForConditionalGeneration", config="BartConfig"),
    Architecture(name="Pegasus large", model="PegasusForConditionalGeneration", config="PegasusConfig"),
    Architecture(
        name="M2M100 418M",
        model="M2M100ForConditionalGeneration",
        config="M2M100Config",
        sizes={"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
    ),
    Architecture(name="BERT base", model="BertForMaskedLM", config="BertConfig", dtype="float32"),
    Architecture(
        name="RoBERTa base",
        model="RobertaForMaskedLM",
        config="RobertaConfig",
        sizes={"max_position_embeddings": 514},
        dtype="float32",
    ),
    Architecture(
        name="DeBERTa v2 xlarge",
        model="DebertaV2ForMaskedLM",
        config="DebertaV2Config",
        sizes={
            "relative_attention": True,
            "position_buckets": 256,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        dtype="float32",
    ),
    Architecture(
        name="ELECTRA base",
        model="ElectraForMaskedLM",
        config="ElectraConfig",
        sizes={"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
        dtype="float32",
    ),
    Architecture(
        name="ALBERT base",
        model="AlbertForMaskedLM",
        config="AlbertConfig",
        sizes={"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
        dtype="float32",
    ),
    Architecture(name="DistilBERT", model="DistilBertForMaskedLM", config="DistilBertConfig", dtype="float32"),
    Architecture(
        name="MPNet base",
        model="MPNetForMaskedLM",
        config="MPNetConfig",
        sizes={"max_position_embeddings": 514},
        dtype="float32",
    ),
    Architecture(name="ModernBERT base", model="ModernBertForMaskedLM", config="ModernBertConfig"),
    Architecture(name="ViT base", model="ViTForImageClassification", config="ViTConfig", dtype="float32"),
    Architecture(name="DeiT base", model="DeiTForImageClassification", config="DeiTConfig", dtype="float32"),
    Architecture(name="BEiT base", model="BeitForImageClassification", config="BeitConfig", dtype="float32"),
    Architecture(name="DINOv2 base", model="Dinov2ForImageClassification", config="Dinov2Config", dtype="float32"),
    Architecture(name="Swin tiny", model="SwinForImageClassification", config="SwinConfig", dtype="float32"),
    Architecture(
        name="ConvNeXt tiny", model="ConvNextForImageClassification", config="ConvNextConfig", dtype="float32"
    ),
    Architecture(name="ResNet-50", model="ResNetForImageClassification", config="ResNetConfig", dtype="float32"),
    Architecture(
        name="MobileNet V2", model="MobileNetV2ForImageClassification", config="MobileNetV2Config", dtype="float32"
    ),
    Architecture(
        name="SegFormer B0", model="SegformerForSemanticSegmentation", config="SegformerConfig", dtype="float32"
    ),
    Architecture(
        name="DETR ResNet-50",
        model="DetrForObjectDetection",
        config="DetrConfig",
        sizes={
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "backbone_config": {"model_type": "resnet", "out_features": ["stage4"]},
        },
        dtype="float32",
    ),
    Architecture(name="CLIP B/32", model="CLIPModel", config="CLIPConfig", seq=77, dtype="float32"),
    Architecture(name="SigLIP base", model="SiglipModel", config="SiglipConfig", seq=64, dtype="float32"),
    Architecture(name="BLIP base", model="BlipForConditionalGeneration", config="BlipConfig", seq=32, dtype="float32"),
    Architecture(name="LLaVA 1.5 7B", model="LlavaForConditionalGeneration", config="LlavaConfig", seq=1024),
    Architecture(name="PaliGemma 3B", model="PaliGemmaForConditionalGeneration", config="PaliGemmaConfig", seq=512),
    Architecture(
        name="Whisper small",
        model="WhisperForConditionalGeneration",
        config="WhisperConfig",
        sizes={
            "d_model": 768,
            "encoder_layers": 12,
            "decoder_layers": 12,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072,
        },
        seq=448,
    ),
    Architecture(
        name="Wav2Vec2 base",
        model="Wav2Vec2ForSequenceClassification",
        config="Wav2Vec2Config",
        sizes={"layerdrop": 0.0, "apply_spec_augment": False},
        dtype="float32",
    ),
    Architecture(
        name="HuBERT base",
        model="HubertForSequenceClassification",
        config="HubertConfig",
        sizes={"layerdrop": 0.0, "apply_spec_augment": False},
        dtype="float32",
    ),
)
