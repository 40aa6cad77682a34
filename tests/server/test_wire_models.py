"""The wire at the port of a server: models and their ghosts, beside HTTP."""

import gc

import pytest
import torch
import transformers

from tests.server.running import RunningServer
from tmmu.errors import InvalidConfig, InvalidRequest, ModelUnknown
from tmmu.wire.model_messages import ListModels


def test_one_port_has_http_and_the_wire(server: RunningServer) -> None:
    with server.remote() as remote:
        listed = server.client.get("/v1/models").json()["data"]
        assert [(model.name, model.longest) for model in remote.models()] == [
            (model["id"], model["max_model_len"]) for model in listed
        ]
        with pytest.raises(InvalidRequest, match="payloads"):
            remote.request(ListModels(), [memoryview(b"x")])
    server.wait_for(lambda: not server.service.door.connections)


def test_a_ghost_has_the_weights_of_its_model_but_their_bytes(server: RunningServer) -> None:
    with server.remote() as remote:
        ghost = remote.load("text")
        with pytest.raises(ModelUnknown):
            remote.load("other")
    model = transformers.AutoModelForCausalLM.from_config(ghost.config)
    assert type(model) is transformers.GPT2LMHeadModel
    for real, empty in (
        (model.named_parameters(remove_duplicate=False), ghost.named_parameters(remove_duplicate=False)),
        (model.named_buffers(remove_duplicate=False), ghost.named_buffers(remove_duplicate=False)),
    ):
        forms = {name: (tensor.dtype, tensor.shape) for name, tensor in real}
        assert {name: (tensor.dtype, tensor.shape) for name, tensor in empty} == forms
    assert all(tensor.is_meta for tensor in ghost.state_dict().values())
    assert ghost.get_parameter("lm_head.weight") is ghost.get_parameter("transformer.wte.weight")
    assert len(list(ghost.parameters())) == len(list(model.parameters()))


def test_the_form_of_a_model_is_made_once_for_all_clients(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.remote() as remote:
        remote.load("text")
        used = server.engine("text").usage["text"].used
        monkeypatch.setattr("tmmu.engine.capture.weight_forms.build_model", None)
        with server.remote() as other:
            other.load("text")
        assert server.engine("text").usage["text"].used == used


def test_a_ghost_runs_there_and_leaves_nothing(server: RunningServer) -> None:
    engine, prompt = server.engine("ids"), [1, 2, 3, 250]
    with engine.open(64) as local:
        expected = local.prefill(prompt)
        tokens = list(local.generate(None, 6))
    with server.remote() as remote:
        ghost = remote.load("ids")
        for ids in (prompt, torch.tensor(prompt), torch.tensor([prompt])):
            assert torch.equal(ghost(ids).logits.tensor(), expected)
        output = ghost(prompt)
        assert output.logits.argmax(-1) == expected.argmax(-1)
        assert server.data_used("ids") > 0
        assert ghost.generate(torch.tensor([prompt]), 6).tolist() == [prompt + tokens]
        for ids in ([], torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3)):
            with pytest.raises(InvalidConfig, match="tokens are"):
                ghost(ids)
        del output
        gc.collect()
        server.wait_for(lambda: server.data_used("ids") == 0)
