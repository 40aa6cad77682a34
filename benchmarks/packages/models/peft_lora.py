"""PEFT: a small Llama whose projections have low-rank adapters, which alone are trained."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


class Adapted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32,
        )  # fmt: skip
        lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        self.adapted = get_peft_model(LlamaForCausalLM(config), lora)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.adapted(input_ids=tokens, use_cache=False).logits


model = Adapted


def inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 100, (2, 12)),)
