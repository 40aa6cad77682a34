"""Models of the transformers library in ``torch.compile(backend="tmmu")``: five steps and inference, bit for bit."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tests.runtime.harness import random_ids, same_bits
from tmmu.backend import reports

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_compiler")]

Case = tuple[Callable[[], nn.Module], Callable[[int], dict[str, torch.Tensor]]]


def words(seed: int) -> dict[str, torch.Tensor]:
    return {"input_ids": random_ids(2, 8, high=64, seed=seed)}


def pixels(seed: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed))}


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16, use_cache=False)
    return transformers.GPT2LMHeadModel(config)


def llama(attention: str = "eager") -> nn.Module:
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        vocab_size=64, max_position_embeddings=16, use_cache=False, attn_implementation=attention,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def bert() -> nn.Module:
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=64, max_position_embeddings=16, **sizes))


def vit() -> nn.Module:
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=4, **sizes))


CASES: dict[str, Case] = {"gpt2": (gpt2, words), "llama": (llama, words), "bert": (bert, words), "vit": (vit, pixels)}


def train(run: Callable[..., Any], model: nn.Module, inputs: Callable[[int], dict[str, torch.Tensor]]) -> list[Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(5):
        torch.manual_seed(step)  # dropout draws
        optimizer.zero_grad()
        loss = run(**inputs(step)).logits.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("name", CASES)
def test_models_train_and_run_as_in_eager(name: str) -> None:
    make, inputs = CASES[name]
    model = make().train()
    real = copy.deepcopy(model)
    run: Any = torch.compile(model, backend="tmmu")
    assert all(map(same_bits, train(run, model, inputs), train(real, real, inputs)))
    for (label, weight), eager_weight in zip(model.state_dict().items(), real.state_dict().values(), strict=True):
        assert same_bits(weight, eager_weight), label
    assert [(report.planned, dict(report.plain)) for report in reports()] == [(10, {})] * len(reports())
    model.eval(), real.eval()
    with torch.no_grad():
        for seed in (7, 8):
            assert same_bits(run(**inputs(seed)).logits, real(**inputs(seed)).logits)
    assert not any(report.plain for report in reports())


def test_model_with_another_path_under_dynamo_has_the_bits_of_that_path() -> None:
    """Llama's fused attention gets a mask only under Dynamo: the graph that torch itself then runs is the measure."""
    model = llama("sdpa").train()
    real = copy.deepcopy(model)
    planned = train(torch.compile(model, backend="tmmu"), model, words)
    torch._dynamo.reset()
    expected = train(torch.compile(real, backend="eager"), real, words)
    assert all(map(same_bits, planned, expected))
    assert not any(report.plain for report in reports())


def test_decode_loop_of_fixed_shapes_is_one_plan() -> None:
    model = gpt2().eval()
    run: Any = torch.compile(model, backend="tmmu")
    with torch.no_grad():
        for seed in range(20):
            assert same_bits(run(**words(seed)).logits, model(**words(seed)).logits)
    (report,) = reports()
    assert (dict(report.plans), report.planned, dict(report.plain)) == ({"cold": 1}, 20, {})
