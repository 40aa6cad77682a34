"""Passes of streamed modules: equal to the resident module in any order, whatever breaks, hooks or runs beside."""

from threading import Thread, active_count
from typing import Any

import pytest
import torch

from tests.rings import without
from tests.runtime.harness import same_bits
from tests.runtime.streamed import ring_by_hand
from tests.runtime.streamed_stacks import LAYERS, PARTS, X, output_of, stack, stream_checked
from tmmu.errors import InvalidConfig
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.device.threads import Jitter, ThreadsDevice
from tmmu.runtime.ring.fences import Fence
from tmmu.runtime.ring.modules import StreamOptions, stream_module

pytestmark = pytest.mark.usefixtures("one_thread")


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
