"""The wire at the port of a server: models and their forms, beside HTTP."""

from time import monotonic

import msgspec
import pytest
import transformers

from tests.server.running import PATIENCE, RunningServer
from tmmu.client.client_connection import ClientConnection
from tmmu.client.transport import open_transport
from tmmu.errors import InvalidRequest, ModelUnknown
from tmmu.wire.model_messages import ListModels, LoadModel


def wire_to(server: RunningServer) -> ClientConnection:
    transport = open_transport(str(server.service.address), tls=False, until=monotonic() + PATIENCE)
    return ClientConnection(transport, None, deadline=PATIENCE)


def test_one_port_has_http_and_the_wire(server: RunningServer) -> None:
    connection = wire_to(server)
    header, payloads = connection.request(ListModels())
    listed = server.client.get("/v1/models").json()["data"]
    assert [(model.name, model.longest) for model in header.models] == [(m["id"], m["max_model_len"]) for m in listed]
    assert not payloads
    with pytest.raises(InvalidRequest, match="payloads"):
        connection.request(ListModels(), [memoryview(b"x")])
    connection.close()
    server.wait_for(lambda: not server.service.door.connections)


def test_the_form_of_a_model_is_that_of_its_weights(server: RunningServer) -> None:
    connection = wire_to(server)
    form, (config,) = connection.request(LoadModel(name="text"))
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**msgspec.json.decode(config))
    )
    named = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    assert {w.name: (f"torch.{w.dtype}", w.shape) for w in form.weights} == {
        name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in named.items()
    }
    ties = {w.name: w.tied for w in form.weights if w.name != w.tied}
    assert ties == {"lm_head.weight": "transformer.wte.weight"}
    with pytest.raises(ModelUnknown):
        connection.request(LoadModel(name="other"))
    connection.close()
