"""Streamed modules: equal to the resident module under all kinds of use, and restored afterwards."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, active_count
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import linear

from tests.rings import without
from tests.runtime.harness import randomize, same_bits
from tests.runtime.streamed import ring_by_hand
from tmmu.errors import DeviceMemory, InvalidConfig
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.pinning import PinningRefused
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.device.threads import Jitter, ThreadsDevice
from tmmu.runtime.ring.fences import Fence
from tmmu.runtime.ring.host_image import HostImageOptions
from tmmu.runtime.ring.modules import StreamedModule, StreamOptions, stream_module

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH, LAYERS = 16, 6
PARTS = [f"layers.{n}" for n in range(LAYERS)]
X = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Stack(nn.Module):
    """Layers in a list, run in any order."""

    def __init__(self, layer: Callable[[], nn.Module] = Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, order: Any = range(LAYERS), fail: Any = None) -> torch.Tensor:
        for n in order:
            if fail is not None and n == fail[0]:
                raise fail[1]
            x = self.layers[n](x)
        return x


@contextmanager
def stream_checked(
    module: nn.Module, parts: list[str] = PARTS, *, slots: int = 2, resident: Any = (), **options: Any
) -> Iterator[StreamedModule]:
    """The module streamed through slots on threads with jitter, without gradients; both oracles find nothing."""
    ring, graph = ring_by_hand(module, parts, slots=slots, resident=resident)
    tags, recording = TagChecker(), CommandRecorder()
    device = ThreadsDevice((tags, recording), jitter=Jitter(seed=3, max_seconds=0.0005))
    try:
        stream_options = StreamOptions(**{"poison": True, **options})
        with stream_module(module, ring, graph, device, stream_options) as stream, torch.no_grad():
            yield stream
    finally:
        device.close()
    assert not tags.mismatches, tags.mismatches[0]
    assert not races(recording.log)


def stack(layer: Callable[[], nn.Module] = Layer) -> tuple[nn.Module, nn.Module]:
    """A module with random weights, and a resident copy of it."""
    module = randomize(Stack(layer)).eval()
    return module, copy.deepcopy(module)


def output_of(module: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = module(*args, **kwargs)
    return result


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
@pytest.mark.parametrize("prefetch", [True, False])
def test_streamed_module_equals_the_resident_one(slots: int, prefetch: bool) -> None:
    module, plain = stack()
    with stream_checked(module, slots=slots, prefetch=prefetch) as stream:
        for _ in range(5):
            assert same_bits(module(X), output_of(plain, X))
        assert stream.counters.passes == 5
        ahead = stream.counters.copies - 5 * LAYERS
        assert ahead == (slots - 1 if prefetch else 0)
        assert stream.skipped_copies == 0


def test_module_is_restored_afterwards() -> None:
    module, plain = stack()
    before = {name: (id(tensor), tensor.data_ptr()) for name, tensor in module.named_parameters()}
    attributes = set(module.__dict__)
    with stream_checked(module):
        module(X)
        assert all(tensor.data_ptr() != before[name][1] for name, tensor in module.named_parameters())
    assert {name: (id(tensor), tensor.data_ptr()) for name, tensor in module.named_parameters()} == before
    assert set(module.__dict__) == attributes
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert module.state_dict().keys() == plain.state_dict().keys()
    assert same_bits(output_of(module, X), output_of(plain, X))
    with stream_checked(module):
        assert same_bits(module(X), output_of(plain, X))


def test_module_is_restored_after_an_error() -> None:
    module, plain = stack()
    with pytest.raises(ZeroDivisionError), stream_checked(module):
        module(X, fail=(3, ZeroDivisionError()))
    assert same_bits(output_of(module, X), output_of(plain, X))


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_broken_pass_spoils_no_later_one(error: BaseException, layer: int) -> None:
    module, plain = stack()
    with stream_checked(module):
        module(X)
        with pytest.raises(type(error)):
            module(X, fail=(layer, error))
        for _ in range(2):
            assert same_bits(module(X), output_of(plain, X))


@pytest.mark.parametrize(
    ("order", "skipped"),
    [((0, 1, 2, 4, 5), 1), ((2, 3), 4), ((), 6), ((5, 4, 3, 2, 1, 0), 30), ((0, 0, 1, 2, 3, 4, 5), 0), ((0, 1, 0), 9)],
)
def test_other_order_than_the_schedule_costs_copies_and_stays_right(order: tuple[int, ...], skipped: int) -> None:
    module, plain = stack()
    with stream_checked(module) as stream:
        assert same_bits(module(X, order), output_of(plain, X, order))
        assert stream.skipped_copies == skipped
        assert same_bits(module(X), output_of(plain, X))


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_pass_broken_inside_a_layer_spoils_no_later_one(error: BaseException) -> None:
    module, plain = stack()

    def fail(*_: Any) -> None:
        raise error

    with stream_checked(module):
        for index in (0, 3, 5):
            layer: Any = module.layers[index]  # type: ignore[index]
            hook = layer.down.register_forward_hook(fail)
            with pytest.raises(type(error)):
                module(X)
            hook.remove()
            for _ in range(2):
                assert same_bits(module(X), output_of(plain, X))


def test_foreign_hooks_find_the_weights() -> None:
    module, plain = stack()
    for stack_ in (module, plain):
        for layer in stack_.layers:  # type: ignore[union-attr]
            layer.register_forward_pre_hook(lambda part, args: (args[0] * part.norm.weight.sum(),))
    with stream_checked(module):
        for _ in range(3):
            assert same_bits(module(X), output_of(plain, X))


def test_repeated_streaming_on_one_device_leaves_no_thread() -> None:
    module, plain = stack()
    ring, graph = ring_by_hand(module, PARTS)
    device = ThreadsDevice()
    before = active_count()
    for _ in range(3):
        with stream_module(module, ring, graph, device), torch.no_grad():
            assert same_bits(module(X), output_of(plain, X))
        assert active_count() == before
    device.close()


def test_streaming_and_inference_mode_nest_either_way() -> None:
    module, plain = stack()
    with stream_checked(module), torch.inference_mode():
        for _ in range(2):
            assert same_bits(module(X), output_of(plain, X))
    with torch.inference_mode(), stream_checked(module):
        for _ in range(2):
            assert same_bits(module(X), output_of(plain, X))
    assert same_bits(output_of(module, X), output_of(plain, X))
    assert not any(tensor.is_inference() for tensor in module.parameters())


def test_gradients_are_refused_and_nothing_is_spoiled() -> None:
    module, plain = stack()
    with stream_checked(module):
        with torch.enable_grad(), pytest.raises(InvalidConfig, match=r"no_grad"):
            module(X)
        assert same_bits(module(X), output_of(plain, X))


def test_part_called_alone_is_refused_and_nothing_is_spoiled() -> None:
    module, plain = stack()
    with stream_checked(module):
        with pytest.raises(InvalidConfig, match="called alone"):
            module.layers[2](X)  # type: ignore[index, operator, union-attr]
        assert same_bits(module(X), output_of(plain, X))


def test_state_dict_is_refused_while_streaming() -> None:
    module, _ = stack()
    with stream_checked(module), pytest.raises(InvalidConfig, match="not in it"):
        module.state_dict()


def test_module_that_calls_itself_is_refused() -> None:
    module, plain = stack()
    with stream_checked(module):
        hook = module.layers[1].register_forward_pre_hook(lambda *_: module(X))  # type: ignore[index, union-attr]
        with pytest.raises(InvalidConfig, match="calls itself"):
            module(X)
        hook.remove()
        assert same_bits(module(X), output_of(plain, X))


def test_threads_take_turns() -> None:
    module, plain = stack()
    outputs: list[torch.Tensor] = []

    def run() -> None:
        outputs.extend(output_of(module, X) for _ in range(5))

    with stream_checked(module):
        threads = [Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(outputs) == 20
    assert all(same_bits(output, output_of(plain, X)) for output in outputs)


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


class SlowDevice(ThreadsDevice):
    """Copies come late, so that a reader that does not wait reads old bytes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, jitter=Jitter(seed=1, max_seconds=0.02))


def test_outputs_without_a_fence_are_wrong_and_both_oracles_notice() -> None:
    """The control experiment: these tests can fail."""
    module, plain = stack()
    ring, graph = ring_by_hand(module, PARTS)
    tags, recording = TagChecker(), CommandRecorder()
    device = SlowDevice((tags, recording))
    options = StreamOptions(poison=True, fence_filter=without(Fence.COPY_LANDED))
    with stream_module(module, ring, graph, device, options), torch.no_grad():
        wrong = [not same_bits(module(X), output_of(plain, X)) for _ in range(5)]
    device.close()
    assert any(wrong)
    assert tags.mismatches
    assert races(recording.log)


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
