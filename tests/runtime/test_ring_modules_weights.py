"""Weights of streamed modules: borrowed, shared, transposed, resident, read from files, or refused."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import linear

from tests.runtime.harness import randomize, same_bits
from tests.runtime.streamed import ring_by_hand
from tests.runtime.streamed_stacks import LAYERS, PARTS, WIDTH, Stack, X, output_of, stack, stream_checked
from tmmu.errors import DeviceMemory, InvalidConfig
from tmmu.runtime.device.pinning import PinningRefused
from tmmu.runtime.device.threads import Jitter, ThreadsDevice
from tmmu.runtime.ring.host_image import HostImageOptions
from tmmu.runtime.ring.modules import StreamOptions, stream_module

pytestmark = pytest.mark.usefixtures("one_thread")


class Borrowing(nn.Module):
    """Uses the weights of a submodule that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.inner.weight, self.inner.bias)


class Transposed(nn.Module):
    """A weight that is transposed in memory, and one that is every other element of its storage."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(WIDTH, WIDTH).t())
        self.spread = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH)[:, ::2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.turned + x @ self.spread


class Tied(nn.Module):
    """Two parameters on one storage, one of them a part of it, and a buffer that only this layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.rows = nn.Parameter(self.whole.detach()[: WIDTH // 2])
        self.scale = nn.Buffer(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.whole + (x @ self.rows.t()).sum(-1, keepdim=True)) * self.scale


@pytest.mark.parametrize("layer", [Borrowing, Transposed])
def test_borrowed_and_transposed_weights_stream(layer: Callable[[], nn.Module]) -> None:
    module, plain = stack(layer)
    strides = [tensor.stride() for tensor in module.parameters()]
    with stream_checked(module) as stream:
        for _ in range(3):
            assert same_bits(module(X), output_of(plain, X))
        assert [tensor.stride() for tensor in module.parameters()] == strides
        assert stream.skipped_copies == 0


def test_tensors_on_one_storage_stay_together() -> None:
    module = randomize(Stack(Tied)).eval()
    expected = output_of(module, X)
    ring, graph = ring_by_hand(module, PARTS)
    device = ThreadsDevice(jitter=Jitter(seed=1, max_seconds=0.0005))
    with stream_module(module, ring, graph, device, StreamOptions(poison=True)), torch.no_grad():
        for _ in range(3):
            assert same_bits(module(X), expected)
        layer: Any = module.layers[0]  # type: ignore[index]
        assert layer.rows.data_ptr() == layer.whole.data_ptr()
    device.close()


class Owning(Stack):
    """Has a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor, *args: Any) -> torch.Tensor:
        return super().forward(x + self.start, *args)


@pytest.mark.parametrize("resident", [(), ("start",)])
def test_weight_of_the_root_streams_first_or_is_resident(resident: tuple[str, ...]) -> None:
    module = randomize(Owning()).eval()
    expected = output_of(module, X)
    with stream_checked(module, ["start", *PARTS], resident=resident) as stream:
        for _ in range(3):
            assert same_bits(module(X), expected)
        assert stream.skipped_copies == 0


def test_weight_of_the_root_that_streams_later_is_refused() -> None:
    with (
        pytest.raises(InvalidConfig, match="start belongs to the streamed module itself"),
        stream_checked(randomize(Owning()), [*PARTS, "start"]),
    ):
        pass


def test_resident_parts_are_loaded_from_the_first_pass_on() -> None:
    module, plain = stack()
    with stream_checked(module, resident=("layers.0", "layers.3", "layers.5")) as stream:
        for _ in range(3):
            assert same_bits(module(X), output_of(plain, X))
        assert stream.skipped_copies == 0
        assert stream.counters.copies == 3 + 3 * 3 + 2


def test_ring_for_another_module_is_refused() -> None:
    module, _ = stack()
    ring, graph = ring_by_hand(Stack(Borrowing), PARTS)
    device = ThreadsDevice()
    with pytest.raises(InvalidConfig, match="the module has no layers"), stream_module(module, ring, graph, device):
        pass
    wide = Stack(lambda: nn.Linear(WIDTH, 2 * WIDTH))
    ring, graph = ring_by_hand(wide, PARTS)
    small = Stack(lambda: nn.Linear(WIDTH, WIDTH))
    with (
        pytest.raises(InvalidConfig, match="bytes, and its place in the plan"),
        stream_module(small, ring, graph, device),
    ):
        pass
    device.close()


class Quantized(torch.Tensor):
    """Stands for a tensor subclass that is more than its bytes."""


def test_tensor_subclass_is_refused() -> None:
    module, _ = stack()
    weight: Any = module.layers[0].up  # type: ignore[index]
    weight.weight = nn.Parameter(weight.weight.data.as_subclass(Quantized), requires_grad=False)
    with pytest.raises(InvalidConfig, match="only plain dense tensors"), stream_checked(module):
        pass


def test_weights_stream_from_files_into_a_meta_module(tmp_path: Path) -> None:
    plain = randomize(Stack(Transposed)).eval()
    state = {name: tensor.contiguous() for name, tensor in plain.state_dict().items()}
    for n in range(LAYERS):
        layer_state = {name: tensor for name, tensor in state.items() if name.startswith(f"layers.{n}.")}
        save_file(layer_state, tmp_path / f"{n}.safetensors")
    empty = copy.deepcopy(plain).to("meta")
    with stream_checked(empty, weights=tmp_path):
        for _ in range(3):
            assert same_bits(empty(X), output_of(plain, X))
    assert all(tensor.is_meta for tensor in empty.parameters())


def test_weight_missing_from_the_files_is_named(tmp_path: Path) -> None:
    module, _ = stack()
    save_file({"other": torch.ones(1)}, tmp_path / "w.safetensors")
    module.to("meta")
    path = tmp_path / "w.safetensors"
    with pytest.raises(InvalidConfig, match=r"w\.safetensors has no layers\.0\."), stream_checked(module, weights=path):
        pass
    with pytest.raises(InvalidConfig, match=r"layers\.0\.[a-z.]+ has no value"), stream_checked(module):
        pass


def test_truncated_file_is_refused_and_the_module_is_unchanged(tmp_path: Path) -> None:
    module, plain = stack()
    path = tmp_path / "w.safetensors"
    save_file(plain.state_dict(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(InvalidConfig, match="no whole safetensors file"), stream_checked(module, weights=path):
        pass
    path.unlink()
    with pytest.raises(InvalidConfig, match="cannot read"), stream_checked(module, weights=path):
        pass
    assert same_bits(output_of(module, X), output_of(plain, X))


class Counting(nn.Module):
    """Counts its calls in a buffer that no ring holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.calls = nn.Buffer(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        result: torch.Tensor = self.inner(x) * self.calls
        return result


def test_tensors_outside_the_ring_keep_what_was_written() -> None:
    module = randomize(Stack(Counting)).eval()
    plain = copy.deepcopy(module)
    with stream_checked(module, [f"layers.{n}.inner" for n in range(LAYERS)]):
        for _ in range(3):
            assert same_bits(module(X), output_of(plain, X))
    assert all(layer.calls == 3 for layer in module.layers)  # type: ignore[union-attr]


def test_host_budget_is_enforced_and_refused_pinning_warns() -> None:
    module, plain = stack()
    small = HostImageOptions(budget=100)
    with pytest.raises(DeviceMemory, match="bytes of the host"), stream_checked(module, image=small):
        pass

    class Refusing:
        def register(self, address: int, size: int) -> str:
            return f"{size} bytes are too many"

        def unregister(self, address: int) -> None:
            raise AssertionError

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with stream_checked(module, registrar=Refusing()) as stream:
            assert same_bits(module(X), output_of(plain, X))
            assert stream.image.pinning.pinned_bytes == 0
    assert [warning.category for warning in caught] == [PinningRefused]
