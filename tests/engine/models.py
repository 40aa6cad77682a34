"""Small language models of transformers with random weights, and what their own ``generate`` says."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import transformers

VOCABULARY: Final = 500
NEAR: Final = 1e-5
"""Of the range of the logits: how far a run of other shapes may be from the reference."""
SIZES: Final = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": VOCABULARY,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip


def _gpt2() -> Any:
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=512)
    return transformers.GPT2LMHeadModel(config)


def _gemma3() -> Any:
    kinds = ["sliding_attention", "full_attention"] * 2
    sizes = SIZES | {"num_hidden_layers": 4}
    config = transformers.Gemma3TextConfig(head_dim=16, sliding_window=24, layer_types=kinds, **sizes)
    return transformers.Gemma3ForCausalLM(config)


def _deepseek() -> Any:
    experts = {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    ranks = {"kv_lora_rank": 16, "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
    sizes = SIZES | {"num_key_value_heads": 4}
    config = transformers.DeepseekV3Config(
        moe_intermediate_size=64, first_k_dense_replace=1, **experts, **ranks, **sizes
    )
    return transformers.DeepseekV3ForCausalLM(config)


def _bamba() -> Any:
    sizes = SIZES | {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
    return transformers.BambaForCausalLM(transformers.BambaConfig(mamba_chunk_size=16, **sizes))


def _mamba() -> Any:
    config = transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=VOCABULARY, state_size=8)
    return transformers.MambaForCausalLM(config)


MODELS: Final[Mapping[str, Callable[[], Any]]] = {
    "GPT-2": _gpt2,
    "Llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "Gemma 3": _gemma3,
    "DeepSeek": _deepseek,
    "Mamba": _mamba,
    "Bamba": _bamba,
    "Mixtral": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(num_local_experts=4, **SIZES)),
}


def _t5() -> Any:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4}
    config = transformers.T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes)
    return transformers.T5ForConditionalGeneration(config)


def _whisper() -> Any:
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    layers = {"encoder_layers": 3, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(
        d_model=64, vocab_size=VOCABULARY, num_mel_bins=BINS, max_source_positions=FRAMES // 2,
        suppress_tokens=None, begin_suppress_tokens=None, **heads, **layers, **tokens,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


BINS: Final = 8
FRAMES: Final = 140
ENCODER_DECODERS: Final[Mapping[str, tuple[Callable[[], Any], float]]] = {"T5": (_t5, 4), "Whisper": (_whisper, 14)}
"""With a factor of the weights, so that tokens depend on the source and do not repeat."""
AMPLIFIED_NEAR: Final = 1e-4
"""``NEAR`` of a model whose weights were multiplied, and its differences with them."""


def model_of(name: str) -> Any:
    """The model, in evaluation, with the same random weights each time."""
    torch.manual_seed(0)
    if name not in ENCODER_DECODERS:
        return MODELS[name]().eval()
    make, factor = ENCODER_DECODERS[name]
    model = make().eval()
    model.config.eos_token_id = model.generation_config.eos_token_id = None  # generate has no other way to go on
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if "shared" in path:
                weight.mul_(0.3)
            elif weight.dim() > 1 and "embed" not in path:
                weight.mul_(factor)
    return model


def source_of(name: str, seed: int = 0, tokens: int = 21) -> Any:
    """What the encoder of an encoder-decoder reads: tokens, or features of speech."""
    generator = torch.Generator().manual_seed(seed)
    if name == "Whisper":
        return torch.randn(BINS, FRAMES, generator=generator)
    return prompt_of(tokens, seed)


def source_arguments(source: Any) -> dict[str, torch.Tensor]:
    """A source as the model itself takes it; a mask, without which it takes the padding's tokens for padding."""
    if isinstance(source, torch.Tensor):
        return {"input_features": source[None]}
    ids = torch.tensor([source])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def reference_text(
    model: Any, source: Any, count: int, *, prompt: list[int] | None = None, seed: int | None = None, **settings: Any
) -> list[int]:
    """What transformers generates of a source, behind the start token or a prompt of the decoder."""
    if seed is not None:
        torch.manual_seed(seed)
    arguments = source_arguments(source) | ({"decoder_input_ids": torch.tensor([prompt])} if prompt else {})
    found = model.generate(
        **arguments, max_new_tokens=count, do_sample=seed is not None, eos_token_id=None, pad_token_id=0,
        **({"top_k": 0} | settings if seed is not None else settings),
    )  # fmt: skip
    tokens: list[int] = found[0, -count:].tolist()
    return tokens


def prompt_of(tokens: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (tokens,), generator=generator).tolist()


def reference_tokens(
    model: Any, prompt: list[int], count: int, *, seed: int | None = None, **settings: Any
) -> list[int]:
    """What transformers generates behind the prompt: the best tokens, or drawn ones."""
    if seed is not None:
        torch.manual_seed(seed)
    ids = torch.tensor([prompt])
    found = model.generate(  # without a mask it would take tokens that are the padding's for padding
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
        do_sample=seed is not None, eos_token_id=None, pad_token_id=0,
        **({"top_k": 0} | settings if seed is not None else settings),
    )  # fmt: skip
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


def reference_logits(model: Any, tokens: list[int], source: Any = None) -> torch.Tensor:
    """``float32[vocabulary]`` behind the last of these tokens, unbatched, without padding or cache."""
    ids = torch.tensor([tokens])
    arguments = {"input_ids": ids} if source is None else source_arguments(source) | {"decoder_input_ids": ids}
    with torch.no_grad():
        logits: torch.Tensor = model(**arguments, use_cache=False).logits[0, -1]
    return logits


def require_same_tokens(
    model: Any, prompt: list[int], found: list[int], expected: list[int], source: Any = None, near: float = NEAR
) -> None:
    """A first token that differs is a fault, unless the reference's two best are nearly one."""
    differing = next((i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b), None)
    if differing is None:
        return
    logits = reference_logits(model, prompt + expected[:differing], source)
    first, second = logits.topk(2).values.tolist()
    spread = float(logits.max() - logits.min())
    assert first - second < near * spread, (differing, first, second)
    print(f"token {differing} differs where the two best are {(first - second) / spread:.1e} of the range apart")
