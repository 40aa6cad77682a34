"""The planned executor with a ring: equal to the resident one, bit for bit, in a quarter of the room for weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.rings import without
from tests.runtime.harness import TOKEN, Tensors, capture_program, plan_of, randomize, same_bits, weights_of
from tests.runtime.test_ring_models import blank, model, tokens
from tmmu.errors import InvalidConfig, PlanMismatch
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program
from tmmu.planner.ring.prepare import RingRequest, prepare_ring
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.device.threads import Jitter, ThreadsDevice
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.ring.executor import RingOptions, StreamedExecutor, bind_ring
from tmmu.runtime.ring.fences import Fence
from tmmu.runtime.weights.safetensors_files import stored_tensors

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH, LAYERS = 16, 8
X = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.table = nn.Embedding(4, WIDTH)

    def forward(self, x: torch.Tensor, pick: torch.Tensor) -> torch.Tensor:
        x = x + self.table(pick)
        for layer in self.layers:
            x = layer(x)
        return x


INPUTS: Tensors = {"x": X, "pick": torch.tensor([0, 3, 1])}


def with_ring(program: Program, *, share: int = 4) -> Plan:
    plan = plan_of(program)
    total = sum(
        size
        for size, role in zip(program.graph.buffers.bytes, program.graph.buffers.role, strict=True)
        if role in ("parameter", "constant")
    )
    return prepare_ring(program.graph, plan, RingRequest(capacity=total // share))


@pytest.fixture(scope="module")
def stack() -> tuple[Program, Plan, nn.Module]:
    program, _ = capture_program(Stack, INPUTS)
    return program, with_ring(program), randomize(Stack()).eval()


def jittery(*observers: Any) -> ThreadsDevice:
    return ThreadsDevice(observers, jitter=Jitter(seed=2, max_seconds=0.0003))


def bind_stack(stack: tuple[Program, Plan, nn.Module], device: ThreadsDevice, **options: Any) -> StreamedExecutor:
    program, plan, module = stack
    weights, replay = options.pop("weights", None) or weights_of(module), options.pop("replay", True)
    request = BindRequest(program=program, plan=plan, token=TOKEN, weights=weights, replay=replay)
    return bind_ring(request, device, RingOptions(**{"poison": True, **options}))


@pytest.mark.parametrize("name", ["gpt2", *(pytest.param(n, marks=pytest.mark.slow) for n in ("llama", "mixtral"))])
def test_models_equal_the_resident_executor_a_hundred_times(name: str) -> None:
    pytest.importorskip("transformers.initialization")
    program, constants = capture_program(lambda: blank(name), tokens(0))
    real = randomize(model(name))
    weights = constants | weights_of(real)
    plan = with_ring(program)
    resident = bind(program, plan_of(program), token=TOKEN, weights=weights)
    expected = [resident(**tokens(seed)) for seed in range(3)]
    tags, recording = TagChecker(), CommandRecorder()
    device = jittery(tags, recording)
    request = BindRequest(program=program, plan=plan, token=TOKEN, weights=weights)
    executor = bind_ring(request, device, RingOptions(poison=True))
    assert plan.ring is not None
    assert device.memory(executor.loop.arena).size * 4 <= resident.segments.usage["text"].used
    assert executor.segments.usage["text"].used == 0
    for run in range(100):
        outputs = executor(**tokens(run % 3))
        assert len(outputs) == len(expected[run % 3])
        assert all(map(same_bits, outputs, expected[run % 3])), run
    assert executor.loop.counters.passes == 100
    executor.close()
    device.close()
    assert not tags.mismatches
    assert not races(recording.log)


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("prefetch", [True, False])
def test_streamed_executor_equals_the_module(
    stack: tuple[Program, Plan, nn.Module], replay: bool, prefetch: bool
) -> None:
    device = jittery()
    executor = bind_stack(stack, device, replay=replay, prefetch=prefetch)
    with torch.no_grad():
        expected = stack[2](**INPUTS)
    for _ in range(5):
        assert same_bits(executor(**INPUTS)[0], expected)
    executor.close()
    executor.close()
    device.close()


def test_streamed_executor_reads_weights_from_files(stack: tuple[Program, Plan, nn.Module], tmp_path: Path) -> None:
    save_file(stack[2].state_dict(), tmp_path / "w.safetensors")
    device = jittery()
    executor = bind_stack(stack, device, weights=dict(stored_tensors(tmp_path)))
    with torch.no_grad():
        expected = stack[2](**INPUTS)
    for _ in range(3):
        assert same_bits(executor(**INPUTS)[0], expected)
    executor.close()
    device.close()


class Counting(Stack):
    """Counts its calls in a buffer, and adds it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Buffer(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor, pick: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x, pick) + self.calls


@pytest.mark.parametrize("from_file", [True, False])
def test_state_starts_as_given_and_stays_on_the_device(tmp_path: Path, from_file: bool) -> None:
    program, _ = capture_program(Counting, INPUTS)
    module = randomize(Counting()).eval()
    module.calls.fill_(5)
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    device = jittery()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    weights = dict(stored_tensors(tmp_path)) if from_file else state
    executor = bind_stack((program, with_ring(program), module), device, weights=weights)
    for _ in range(3):
        with torch.no_grad():
            expected = module(**INPUTS)
        assert same_bits(executor(**INPUTS)[0], expected)
    assert executor.state("calls").view(torch.float32).eq(8).all()
    executor.close()
    device.close()


def test_streamed_executor_binds_and_runs_in_inference_mode(stack: tuple[Program, Plan, nn.Module]) -> None:
    device = jittery()
    with torch.inference_mode():
        executor = bind_stack(stack, device)
        expected = stack[2](**INPUTS)
        assert same_bits(executor(**INPUTS)[0], expected)
    assert same_bits(executor(**INPUTS)[0], expected)
    executor.close()
    device.close()


def test_broken_run_spoils_no_later_one(stack: tuple[Program, Plan, nn.Module]) -> None:
    device = jittery()
    executor = bind_stack(stack, device)
    with torch.no_grad():
        expected = stack[2](**INPUTS)
    for _ in range(3):
        with pytest.raises(InvalidConfig, match="out of range"):
            executor(x=X, pick=torch.tensor([0, 99, 1]))
        assert same_bits(executor(**INPUTS)[0], expected)
    executor.close()
    device.close()


def test_executor_without_a_fence_is_wrong_and_both_oracles_notice(stack: tuple[Program, Plan, nn.Module]) -> None:
    tags, recording = TagChecker(), CommandRecorder()
    device = ThreadsDevice((tags, recording), jitter=Jitter(seed=2, max_seconds=0.02))
    executor = bind_stack(stack, device, fence_filter=without(Fence.COPY_LANDED))
    with torch.no_grad():
        expected = stack[2](**INPUTS)
    assert not all(same_bits(executor(**INPUTS)[0], expected) for _ in range(5))
    executor.close()
    device.close()
    assert tags.mismatches
    assert races(recording.log)


def test_mismatched_arguments_are_refused(stack: tuple[Program, Plan, nn.Module], tmp_path: Path) -> None:
    program, plan, module = stack
    weights = weights_of(module)
    device = ThreadsDevice()

    def require_refusal(kind: type[Exception], match: str, **changes: Any) -> None:
        request = BindRequest(program=program, plan=plan, token=TOKEN, weights=weights)
        with pytest.raises(kind, match=match):
            bind_ring(replace(request, **changes), device)

    require_refusal(InvalidConfig, "has no ring", plan=replace(plan, ring=None))
    require_refusal(InvalidConfig, "no value is given for", weights={})
    save_file({"table.weight": torch.zeros(4, WIDTH, dtype=torch.float16)}, tmp_path / "half.safetensors")
    half = weights | dict(stored_tensors(tmp_path))
    require_refusal(InvalidConfig, "table.weight in half.safetensors is float16", weights=half)
    require_refusal(PlanMismatch, "graph", plan=replace(plan, ir_hash=bytes(32)))
    device.close()


def test_two_executors_share_a_device(stack: tuple[Program, Plan, nn.Module]) -> None:
    device = jittery()
    first, second = bind_stack(stack, device), bind_stack(stack, device)
    with torch.no_grad():
        expected = stack[2](**INPUTS)
    for _ in range(3):
        assert same_bits(first(**INPUTS)[0], expected)
        assert same_bits(second(**INPUTS)[0], expected)
    first.close()
    with pytest.raises(KeyError):
        device.memory(first.loop.arena)
    assert same_bits(second(**INPUTS)[0], expected)
    second.close()
    device.close()
