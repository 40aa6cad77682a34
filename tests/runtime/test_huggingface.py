"""Planned is eager, bit for bit: the architectures people run, small, with random weights."""

from typing import Any

import pytest
import torch

from tests.kernels import plain_kernels
from tests.runtime.harness import Tensors, bind_module, random_ids, randomize, run_eager, same_bits

transformers = pytest.importorskip("transformers")

LLAMA: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "use_cache": False,
}  # fmt: skip
BERT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100
}  # fmt: skip
VIT: dict[str, Any] = BERT | {"image_size": 32, "patch_size": 8}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "use_cache": False}


def tokens(seed: int) -> Tensors:
    return {"input_ids": random_ids(2, 16, high=100, seed=seed)}


def masked_tokens(seed: int) -> Tensors:
    return tokens(seed) | {"attention_mask": (torch.arange(16) < 11 + seed).long().expand(2, 16).contiguous()}


def pixels(seed: int) -> Tensors:
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(seed))}


CASES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA, tokens),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, tokens),
    "gpt2-masked": ("GPT2LMHeadModel", "GPT2Config", GPT2, masked_tokens),
    "bert": ("BertForMaskedLM", "BertConfig", BERT, tokens),
    "bert-masked": ("BertForMaskedLM", "BertConfig", BERT, masked_tokens),
    "vit": ("ViTForImageClassification", "ViTConfig", VIT, pixels),
}


def model(name: str) -> Any:
    cls, config, settings, _ = CASES[name]
    return getattr(transformers, cls)(getattr(transformers, config)(**settings)).eval()


def blank(name: str) -> Any:
    """The same model, with weights that are never drawn: there is nothing to draw while it is captured."""
    with transformers.initialization.no_init_weights():
        module = model(name)
    module.tie_weights()
    return module


@pytest.mark.parametrize("name", CASES)
def test_outputs_have_the_bits_of_eager(name: str) -> None:
    real = randomize(model(name))
    make_inputs = CASES[name][3]
    with plain_kernels():
        executor = bind_module(lambda: blank(name), real, make_inputs(0))
        for seed in (0, 1, 0):
            expected, planned = run_eager(real, make_inputs(seed)), executor(**make_inputs(seed))
            assert len(planned) == len(expected)
            assert all(map(same_bits, planned, expected))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_training_steps_have_the_bits_of_eager(name: str) -> None:
    real = randomize(model(name)).train()
    batches = [tokens(seed) | {"labels": random_ids(2, 16, high=100, seed=seed + 9)} for seed in (0, 1)]
    with plain_kernels():
        executor = bind_module(lambda: blank(name), real, batches[0], mode="backward", preset="train_full")
        for batch in (*batches, batches[0]):
            torch.manual_seed(3)
            real.zero_grad(set_to_none=True)
            loss = real(**batch).loss
            loss.backward()
            expected = [loss.detach(), *(p.grad for p in real.parameters() if p.grad is not None)]
            torch.manual_seed(3)
            planned = executor(**batch)
            assert len(planned) == len(expected)
            assert all(map(same_bits, planned, expected))
