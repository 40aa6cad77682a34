"""What cannot be recorded is a coded error, never a wrong value; local operands go to the side that costs less."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch

from tests.unit.client.device.conftest import Remote
from tmmu.client.device.operator_classes import OperatorClass, class_of
from tmmu.errors import DeviceMemory, InvalidConfig, InvalidRequest, QuotaExceeded, ReferenceStale, UnsupportedOp
from tmmu.server.graphs.graph_limits import GraphLimits


def ones(*shape: int, **kwargs: object) -> torch.Tensor:
    return torch.ones(*shape, device="remote", **kwargs)


REFUSED = {
    "address": lambda: ones(2).data_ptr(),
    "storage": lambda: ones(2).untyped_storage(),
    "shared memory": lambda: ones(2).share_memory_(),
    "pickle": lambda: pickle.dumps(ones(2)),
    "pickle of a module": lambda: pickle.dumps(torch.nn.Linear(2, 2).to("remote")),
    "DLPack": lambda: torch.from_dlpack(ones(2)),
    "sparse": lambda: ones(2).to_sparse(),
    "sparse upload": lambda: torch.ones(2).to_sparse().to("remote"),
    "conjugated view": lambda: ones(2, dtype=torch.complex64).conj(),
    "negated view": lambda: ones(2, dtype=torch.complex64).conj().imag,
    "another storage": lambda: ones(2).set_(ones(3)),
    "another size": lambda: ones(2).resize_(5),
    "out of another size": lambda: torch.add(ones(3), 1, out=ones(2)),
    "a generator": lambda: ones(3).normal_(generator=torch.Generator()),
    "pinned": lambda: ones(2).pin_memory(),
    "bincount": lambda: torch.bincount(ones(3, dtype=torch.int64)),
    "repeats of values": lambda: torch.repeat_interleave(ones(2), ones(2, dtype=torch.int64)),
    "a library's operator": lambda: torch.ops.prims.sin(ones(2)),
    "another device": lambda: ones(2) + torch.ones(2, device="meta"),
    "booleans as numbers": lambda: ones(2, dtype=torch.bool).view(torch.uint8),
    "data from here": lambda: setattr(ones(2), "data", torch.ones(2)),
    "a quantized tensor": lambda: torch.quantize_per_tensor(ones(2), 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_refused_by_code(remote: Remote, name: str) -> None:
    with pytest.raises((UnsupportedOp, InvalidRequest)) as caught:
        REFUSED[name]()
    assert caught.value.fix
    assert ones(2).tolist() == [1, 1]


@pytest.mark.parametrize("make", [lambda: torch.ones(2, device="remote:1"), lambda: torch.ones(2).to("remote:2")])
@pytest.mark.usefixtures("remote")
def test_a_second_remote_device_is_refused(make: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(InvalidConfig, match="a process has one remote device"):
        make()
    assert torch.ones(2, device="remote:0").tolist() == [1, 1]


def test_a_layer_as_one_kernel_is_refused_with_what_takes_it_apart(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval().requires_grad_(False)
    layer, x = copy.deepcopy(local).to("remote"), torch.randn(2, 3, 16)
    with pytest.raises(UnsupportedOp) as caught:
        layer(x.to("remote"))
    assert caught.value.fix == "call torch.backends.mha.set_fastpath_enabled(False)"
    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)
    requests = remote.requests
    assert torch.equal(layer(x.to("remote")).cpu(), local(x))
    assert remote.requests == requests + 1


def test_what_torch_refuses_is_raised_at_once(remote: Remote) -> None:
    before = remote.requests
    with pytest.raises(RuntimeError, match="broadcast"):
        ones(2) + ones(3)
    with pytest.raises(RuntimeError):
        ones(2, 3) @ ones(2, 3)
    assert remote.requests == before


def test_gradients_are_refused_outside_of_no_grad(remote: Remote) -> None:
    layer = torch.nn.Linear(2, 2).to("remote")
    x = ones(1, 2)
    with torch.enable_grad():
        with pytest.raises(UnsupportedOp, match="outside of a step function"):
            layer(x)
        with pytest.raises(UnsupportedOp, match="gradient"):
            torch.nn.functional.dropout(layer.weight, 0.5)
        assert (x + 1).tolist() == [[2, 2]]
        assert "requires_grad=True" in repr(layer.weight)
        assert layer.weight.detach().shape == (2, 2)
    with torch.inference_mode():
        assert torch.equal(layer(x).cpu(), copy.deepcopy(layer).to("cpu")(torch.ones(1, 2)))


def test_switches_that_the_server_does_not_know_are_refused(remote: Remote) -> None:
    x = ones(2) + 1
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(UnsupportedOp, match="deterministic"):
            x.sum().item()
    finally:
        torch.use_deterministic_algorithms(False)
    assert x.tolist() == [2, 2]
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.ones(2, device="remote").dtype is torch.float64
        with pytest.raises(UnsupportedOp, match="by default"):
            torch.arange(3, device="remote") / 2
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast_is_refused_and_a_block_of_it_that_is_off_is_not(remote: Remote) -> None:
    with pytest.raises(UnsupportedOp, match="autocast"):
        torch.autocast("remote", torch.bfloat16)
    with torch.autocast("remote", enabled=False):
        assert (ones(2, 2) @ ones(2, 2)).tolist() == [[2, 2], [2, 2]]


def test_an_index_that_is_out_of_range_fails_the_run_and_what_it_would_have_changed(remote: Remote) -> None:
    bystander, written = ones(2) * 3, ones(4)
    remote.device.run()
    written.mul_(2)
    bad = ones(3).index_select(0, torch.tensor([7], device="remote"))
    with pytest.raises(InvalidRequest, match="out of range"):
        bad.sum().item()
    for tensor in (bad, written):
        with pytest.raises(ReferenceStale, match="out of range"):
            tensor.tolist()
        with pytest.raises(ReferenceStale):
            tensor + 1
    assert bystander.tolist() == [3, 3]
    assert (ones(2) + bystander).tolist() == [4, 4]


def test_weights_that_came_with_a_run_that_failed_are_there(remote: Remote) -> None:
    weights = torch.randn(100)
    there = weights.to("remote")
    with pytest.raises(InvalidRequest):
        there.index_select(0, torch.tensor([700], device="remote")).sum().item()
    assert torch.equal(there.cpu(), weights)
    assert remote.device.counts.uploaded == 408


def test_a_quota_that_is_full_is_a_coded_error_and_del_makes_room(remote: Remote) -> None:
    remote.service.limits = GraphLimits(bytes=1 << 20)
    remote.service.usage_of("anybody")._limits = remote.service.limits
    first = torch.zeros(200_000, device="remote")
    remote.device.run()
    with pytest.raises(QuotaExceeded):
        (torch.zeros(100_000, device="remote") + 1).sum().item()
    assert not first.any()
    del first
    ones(1).item()
    assert (torch.zeros(100_000, device="remote") + 1).sum().item() == 100_000


def test_a_seed_is_set_though_the_request_that_brought_it_was_refused(remote: Remote) -> None:
    remote.service.limits = GraphLimits(bytes=1 << 20)
    remote.service.usage_of("anybody")._limits = remote.service.limits
    torch.manual_seed(11)
    with pytest.raises(QuotaExceeded):
        torch.ones(400_000).to("remote").sum().item()
    drawn = torch.randn(3, device="remote").tolist()
    torch.manual_seed(11)
    assert drawn == torch.randn(3).tolist()


def test_local_operands_are_moved_or_remote_ones_materialized_by_cost(remote: Remote) -> None:
    counts, large, small = remote.device.counts, torch.arange(1000.0), torch.arange(1000.0)[:1]
    result = ones(1000) + small
    assert (result.device.type, counts.moved, counts.materialized) == ("remote", 1, 0)
    result = large + ones(1)
    assert (result.device.type, counts.moved, counts.materialized) == ("cpu", 1, 1)
    assert torch.equal(result, large + 1)
    result = ones(1).add_(torch.ones(1))
    assert (result.tolist(), counts.moved) == ([2], 2)
    large.add_(ones(1))
    assert large[0] == 1
    assert counts.materialized == 2
    assert torch.dot(large, ones(1000)).device.type == "remote"
    local = torch.zeros_like(ones(2, 3).t(), device="cpu")
    assert (type(local), local.stride()) == (torch.Tensor, (1, 3))


def test_operators_have_the_classes_of_the_page(remote: Remote) -> None:
    aten = torch.ops.aten
    assert class_of(aten._local_scalar_dense.default) is OperatorClass.TRIGGER
    assert class_of(aten.argmax.default) is OperatorClass.REDUCTION
    assert class_of(aten.nonzero.default) is OperatorClass.SHAPE_DEPENDENT
    assert class_of(aten.sort.default) is OperatorClass.TUPLE
    assert class_of(aten.add.Tensor) is OperatorClass.COMPUTE
    (ones(2) + 1).sum().item()
    ones(3).sort()
    ones(3).nonzero()
    counted = {kind.value: count for kind, count in remote.device.counts.calls.items()}
    assert counted == {"compute": 4, "reduction": 1, "trigger": 1, "tuple": 1, "shape-dependent": 1}


def test_a_call_that_runs_here_asks_for_room(remote: Remote) -> None:
    small, large = torch.ones(1 << 9, device="remote"), torch.ones(1 << 10, 1 << 9)
    planned = (1 << 9) * 4 + (1 << 19) * 4
    free = [planned * 3 // 2]
    remote.device.dispatcher._local._free_bytes = lambda: free[0]
    before = remote.device.counts.materialized
    assert torch.equal(large + small, large + 1)
    free[0] -= 1
    with pytest.raises(DeviceMemory, match=f"takes {planned} bytes"):
        large + small
    free[0] = 0
    assert (large[0] * small[:1]).sum() == 1 << 9  # too little to look
    assert remote.device.counts.materialized == before + 2
