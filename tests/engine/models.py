"""Small language models of transformers with random weights, and what their own ``generate`` says."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import transformers

VOCABULARY: Final = 500
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


def model_of(name: str) -> Any:
    """The model, in evaluation, with the same random weights each time."""
    torch.manual_seed(0)
    return MODELS[name]().eval()


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


def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """``float32[vocabulary]`` behind the last of these tokens, unbatched, without padding or cache."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    return logits
