"""Models of transformers on the remote device, unchanged but for the device: local bits, and one request a value."""

import copy
from functools import cache

import pytest
import torch
import transformers

from tests.unit.client.device.conftest import Remote


@cache
def gpt2() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config).eval()


@cache
def vit() -> torch.nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    return transformers.ViTForImageClassification(config).eval()


@cache
def resnet() -> torch.nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=3, layer_type="basic"
    )
    return transformers.ResNetForImageClassification(config).eval()


def test_gpt2_has_local_bits_and_its_second_run_is_planned(remote: Remote) -> None:
    model = copy.deepcopy(gpt2()).to("remote")
    assert model.lm_head.weight is model.transformer.wte.weight
    ids = torch.randint(3, 100, (2, 9))
    expected = gpt2()(ids).logits
    planned = []
    for _ in range(4):
        before = remote.requests
        assert torch.equal(model(ids.to("remote")).logits.cpu(), expected)
        assert remote.requests == before + 1
        planned.append(remote.device.counts.planned)
    assert planned in ([0, 1, 2, 3], [0, 0, 1, 2])  # the first run may copy what later ones share
    assert remote.service.plans.count == 1
    assert remote.session.bindings.why_unplanned() == ()


def test_gpt2_generates_the_same_tokens_by_a_request_for_each_value_that_is_looked_at(remote: Remote) -> None:
    model = copy.deepcopy(gpt2()).to("remote")
    ids = torch.randint(3, 100, (1, 9))
    arguments = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    expected = gpt2().generate(ids, **arguments)
    before = copy.deepcopy(remote.device.counts)
    assert model.generate(ids.to("remote"), **arguments).tolist() == expected.tolist()
    counts = remote.device.counts
    requests = counts.requests - before.requests
    assert requests == (counts.looks - before.looks) - (counts.cached - before.cached)
    assert counts.calls.total() - before.calls.total() > 30 * requests  # one for a value, none for an operator


@pytest.mark.parametrize("make", [vit, resnet])
def test_vision_models_have_local_bits(remote: Remote, make) -> None:
    model = copy.deepcopy(make()).to("remote")
    images = torch.randn(2, 3, 32, 32)
    expected = make()(images).logits
    for _ in range(3):
        before = remote.requests
        assert torch.equal(model(images.to("remote")).logits.cpu(), expected)
        assert remote.requests == before + 1
    assert remote.device.counts.planned >= 1


def test_running_statistics_are_written_there(remote: Remote) -> None:
    local = copy.deepcopy(resnet()).train()
    model = copy.deepcopy(local).to("remote")
    images = torch.randn(2, 3, 32, 32)
    for _ in range(3):
        assert torch.equal(model(images.to("remote")).logits.cpu(), local(images).logits)
    for name, buffer in local.named_buffers():
        assert torch.equal(model.get_buffer(name).cpu(), buffer), name


def test_dropout_under_a_seed_draws_as_the_cpu(remote: Remote) -> None:
    local = copy.deepcopy(gpt2()).train()
    model = copy.deepcopy(local).to("remote")
    ids = torch.randint(3, 100, (1, 9))
    for _ in range(3):
        torch.manual_seed(5)
        expected = [local(ids).logits for _ in range(2)]
        torch.manual_seed(5)
        assert all(torch.equal(model(ids.to("remote")).logits.cpu(), logits) for logits in expected)
    assert remote.device.counts.planned >= 1


def test_moved_modules_are_modules_still(remote: Remote) -> None:
    model = copy.deepcopy(resnet()).to("remote")
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"remote"}
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in model.parameters())
    twin = copy.deepcopy(model)
    twin.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in resnet().state_dict().items()})
    model.load_state_dict(resnet().state_dict())
    name = next(iter(model.state_dict()))
    assert torch.equal(model.state_dict()[name].cpu(), resnet().state_dict()[name])
    assert not twin.state_dict()[name].any()
    back = model.to("cpu")
    assert all(type(tensor) is torch.Tensor for tensor in back.state_dict().values())


def test_recurrent_layers_have_local_bits(remote: Remote) -> None:
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        local = kind(4, 8, num_layers=2)
        steps = torch.randn(5, 1, 4)
        model = copy.deepcopy(local).to("remote")
        for _ in range(2):
            assert torch.equal(model(steps.to("remote"))[0].cpu(), local(steps)[0]), kind
