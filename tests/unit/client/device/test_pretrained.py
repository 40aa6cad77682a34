"""transformers loads a model onto the device: shapes here, bytes there, and none of them twice."""

import gc
from pathlib import Path

import pytest
import torch
import transformers

from tests.unit.client.device.conftest import Remote
from tests.unit.client.device.test_models import gpt2
from tmmu.client.device import remote_recorder
from tmmu.client.device.remote_tensor import RemoteTensor


def bytes_here() -> int:
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    plain = [each for each in tensors if each.layout is torch.strided and not each.is_nested]  # of other tests too
    return sum(tensor.nbytes for tensor in plain if tensor.device.type == "cpu")


def load(folder: Path, device_map: object) -> torch.nn.Module:
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map=device_map)
    return model


def test_a_model_from_a_folder_has_shapes_here_and_bytes_there(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt2().save_pretrained(tmp_path)
    expected, ids = gpt2()(torch.arange(9)[None]).logits, torch.arange(9)[None].to("remote")
    before = bytes_here()
    with monkeypatch.context() as patch:
        patch.setattr(remote_recorder, "MOST_BYTES", 4096)  # of a model that is larger
        model = load(tmp_path, "remote")
    assert bytes_here() == before
    counts, size = remote.device.counts, sum(parameter.nbytes for parameter in model.parameters())
    assert all(isinstance(tensor, RemoteTensor) for tensor in model.state_dict().values())
    assert model.lm_head.weight is model.transformer.wte.weight
    assert counts.runs == 0
    assert torch.equal(model(ids).logits.cpu(), expected)
    uploaded = counts.uploaded
    assert uploaded + counts.reused == size + ids.nbytes
    again = load(tmp_path, {"": "remote"})
    assert torch.equal(again.transformer.wte.weight[7].cpu(), gpt2().transformer.wte.weight[7])
    assert counts.uploaded == uploaded
    assert not remote.device.dispatcher.recorder._uploads
