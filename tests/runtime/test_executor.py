"""The executor: what it refuses, what it leaves alone, what it allocates, and who may call it when."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from safetensors.torch import save_file
from torch import nn

from tests.kernels import plain_kernels
from tests.runtime import zoo
from tests.runtime.harness import (
    TOKEN,
    Make,
    Tensors,
    bind_module,
    capture_program,
    plan_of,
    random_ids,
    randomize,
    run_eager,
    same_bits,
    weights_of,
)
from tests.unit.passes import models
from tmmu.errors import DeviceMemory, InvalidConfig, PlanMismatch, PlanUnsound, SegmentFull, TmmuError
from tmmu.ir.plan import segment_bytes
from tmmu.planner.arenas import default_arenas
from tmmu.planner.token import token_from_seed
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory import sizing
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.sizing import SegmentSizes
from tmmu.runtime.steps.unplanned import count_allocations
from tmmu.runtime.weights.safetensors_files import stored_tensors

MASK = torch.tensor([[True, False, True], [False, False, True], [True, True, False]])
X = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
ZOO: dict[str, tuple[Make, Tensors]] = {
    "factories": (zoo.Factories, {"x": X}),
    "elementwise": (zoo.Elementwise, {"x": X, "mask": MASK}),
    "shapes": (zoo.Shapes, {"x": X, "ids": random_ids(3, 3, high=3)}),
    "drawing": (zoo.RandomOperators, {"x": X}),
}


def differing_outputs(outputs: tuple[torch.Tensor, ...], expected: list[torch.Tensor]) -> list[int]:
    assert len(outputs) == len(expected)
    return [i for i, (f, e) in enumerate(zip(outputs, expected, strict=True)) if not same_bits(f, e)]


@pytest.mark.parametrize("preset", ["inference", "train_full"])
@pytest.mark.parametrize("name", ZOO)
def test_operators_of_every_kind_have_the_bits_of_eager(name: str, preset: str) -> None:
    make, inputs = ZOO[name]
    real = make()
    with plain_kernels():
        executor = bind_module(make, real, inputs, preset=preset)
        for seed in (0, 1):
            torch.manual_seed(seed)
            expected = run_eager(real, {k: v.clone() for k, v in inputs.items()})
            torch.manual_seed(seed)
            assert differing_outputs(executor(**{k: v.clone() for k, v in inputs.items()}), expected) == []


@pytest.mark.parametrize("alignment", [16, 64, 4096])
@pytest.mark.parametrize("layout", ["joint", "packed", "slots"])
def test_layouts_and_alignments_all_run(layout: str, alignment: int) -> None:
    real = randomize(models.Decoder()).eval()
    inputs = {"ids": random_ids(2, 6, high=50)}
    specs = [replace(s, layout=layout if s.segment == "stack" else s.layout) for s in default_arenas(alignment)]
    program, constants = capture_program(models.Decoder, inputs)
    plan = plan_of(program, arenas=specs)
    executor = bind(program, plan, token=TOKEN, weights=constants | weights_of(real))
    assert differing_outputs(executor(**inputs), run_eager(real, inputs)) == []


def test_changed_input_is_changed_for_the_caller() -> None:
    executor = bind_module(zoo.ChangesInput, zoo.ChangesInput(), {"x": X})
    planned_input, eager_input = X.clone(), X.clone()
    expected = run_eager(zoo.ChangesInput(), {"x": eager_input})
    assert differing_outputs(executor(x=planned_input), expected) == []
    assert planned_input.equal(eager_input)
    turned = X.clone().t()
    assert executor(x=turned)[0].equal(turned)


@pytest.fixture(scope="module")
def cached_executor() -> tuple[Executor, nn.Module]:
    real = randomize(models.Cached()).eval()
    return bind_module(models.Cached, real, {"x": torch.zeros(1, 16)}), real


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("missing", {}),
    ("is called 'y'", {"x": torch.zeros(1, 16), "y": torch.zeros(1)}),
    ("shape", {"x": torch.zeros(2, 16)}),
    ("dtype", {"x": torch.zeros(1, 16, dtype=torch.float64)}),
    ("device", {"x": torch.zeros(1, 16, device="meta")}),
    ("dense", {"x": [0.0] * 16}),
    ("dense", {"x": torch.zeros(1, 16).to_sparse()}),
]


@pytest.mark.parametrize(("message", "inputs"), WRONG)
def test_wrong_inputs_are_refused_before_anything_changes(
    message: str, inputs: dict[str, Any], cached_executor: tuple[Executor, nn.Module]
) -> None:
    executor, _ = cached_executor
    before = executor.state("keys").clone()
    with pytest.raises(InvalidConfig, match=message):
        executor(**inputs)
    assert executor.state("keys").equal(before)


def test_operator_that_raises_is_named() -> None:
    real = models.Decoder().eval()
    executor = bind_module(models.Decoder, real, {"ids": random_ids(2, 6, high=50)})
    with pytest.raises(InvalidConfig, match=r"op \d+ aten\.embedding"):
        executor(ids=torch.full((2, 6), 50))
    inputs = {"ids": random_ids(2, 6, high=50)}
    assert differing_outputs(executor(**inputs), run_eager(real, inputs)) == []


def test_plan_for_another_graph_token_target_or_program_is_a_mismatch() -> None:
    inputs = {"x": torch.zeros(1, 16)}
    program, _ = capture_program(models.Cached, inputs)
    recurrent, _ = capture_program(models.Recurrent, {"x": torch.zeros(2, 5, 8)})
    weights, plan = weights_of(models.Cached()), plan_of(program)
    for wrong, token in ((replace(program, graph=recurrent.graph), TOKEN), (program, token_from_seed(8))):
        with pytest.raises(PlanMismatch):
            bind(wrong, plan, token=token, weights=weights)
    with pytest.raises(PlanMismatch, match="calls"):
        bind(replace(program, calls=program.calls[:-1]), plan, token=TOKEN, weights=weights)
    cuda = replace(program, graph=replace(program.graph, target="cuda"))
    with pytest.raises(PlanMismatch, match="cuda"):
        bind(cuda, plan_of(cuda), token=TOKEN, weights=weights)


def test_unsound_plan_is_not_bound() -> None:
    program, constants = capture_program(models.Decoder, {"ids": random_ids(2, 6, high=50)})
    plan = plan_of(program)
    moved = tuple(0 for _ in plan.buffers.offset)
    with pytest.raises(PlanUnsound):
        bind(
            program,
            replace(plan, buffers=replace(plan.buffers, offset=moved)),
            token=TOKEN,
            weights=constants | weights_of(models.Decoder()),
        )


def test_plan_larger_than_the_device_is_refused_before_it_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = capture_program(models.Cached, {"x": torch.zeros(1, 16)})
    plan, weights = plan_of(program), weights_of(models.Cached())
    need = sum(segment_bytes(plan.arenas, name) for name in ("text", "data", "stack"))
    monkeypatch.setattr(sizing, "device_memory", lambda device: (need, 10**9))
    bind(program, plan, token=TOKEN, weights=weights)
    monkeypatch.setattr(sizing, "device_memory", lambda device: (need - 1, 10**9))
    with pytest.raises(DeviceMemory) as caught:
        bind(program, plan, token=TOKEN, weights=weights)
    assert (caught.value.fields["bytes"], caught.value.fields["free"]) == (need, need - 1)


def test_missing_and_misshapen_weights_are_named() -> None:
    program, _ = capture_program(models.Cached, {"x": torch.zeros(1, 16)})
    plan, weights = plan_of(program), weights_of(models.Cached())
    wrong = {
        r"project\.bias": {k: v for k, v in weights.items() if k != "project.bias"},
        "bytes": weights | {"project.weight": torch.zeros(16, 15)},
        "float64": weights | {"project.weight": torch.zeros(16, 16, dtype=torch.float64)},
    }
    for message, changed in wrong.items():
        with pytest.raises(InvalidConfig, match=message):
            bind(program, plan, token=TOKEN, weights=changed)


def test_state_starts_at_zero_and_can_be_set() -> None:
    real = randomize(models.Cached()).eval()
    program, _ = capture_program(models.Cached, {"x": torch.zeros(1, 16)})
    weights = {k: v for k, v in weights_of(real).items() if k != "keys"}
    executor = bind(program, plan_of(program), token=TOKEN, weights=weights)
    assert not executor.state("keys").any()
    x = X.flatten().repeat(2)[:16].view(1, 16)
    executor.state("keys").view(torch.float32).fill_(1.0)
    first = executor(x=x)
    again = executor(x=x)
    assert not first[0].equal(again[0])
    executor.state("keys").view(torch.float32).fill_(1.0)
    assert differing_outputs(executor(x=x), list(first)) == []
    with pytest.raises(InvalidConfig, match="nothing"):
        executor.state("nothing")


def test_weights_may_have_any_strides_and_are_not_changed() -> None:
    real = randomize(models.Cached()).eval()
    wide = torch.randn(20, 40)
    scattered = weights_of(real) | {"project.weight": wide[2:18, 3:19]}
    real.project.weight.data.copy_(wide[2:18, 3:19])
    before = wide.clone()
    program, _ = capture_program(models.Cached, {"x": torch.zeros(1, 16)})
    executor = bind(program, plan_of(program), token=TOKEN, weights=scattered)
    x = torch.ones(1, 16)
    assert differing_outputs(executor(x=x), run_eager(real, {"x": x})) == []
    assert wide.equal(before)


def test_views_see_the_next_run_and_copies_do_not(cached_executor: tuple[Executor, nn.Module]) -> None:
    executor, _ = cached_executor
    first_input, second_input = torch.ones(1, 16), torch.full((1, 16), -3.0)
    (view,), (copy,) = executor.run({"x": first_input}, views=True), executor(x=first_input)
    copy_before = copy.clone()
    (new,) = executor(x=second_input)
    assert view.equal(new)
    assert copy.equal(copy_before)
    assert not view.equal(copy)


@pytest.mark.parametrize("name", ["decoder", "convolutional", "odd"])
def test_step_allocates_what_it_declares_and_its_outputs(name: str) -> None:
    cases: dict[str, tuple[Make, Tensors]] = {
        "decoder": (models.Decoder, {"ids": random_ids(2, 6, high=50)}),
        "convolutional": (models.Convolutional, {"pixels": torch.ones(2, 3, 8, 8)}),
        "odd": (models.ViewsAndWrites, {"x": torch.ones(3, 4), "y": torch.ones(3, 2)}),
    }
    make, inputs = cases[name]
    with plain_kernels():
        executor = bind_module(make, make().eval(), inputs)
        for views in (True, False):
            with count_allocations() as counter:
                out = executor.run(inputs, views=views)
            declared = sum(row.bytes for row in executor.unplanned_allocations)
            outputs = 0 if views else sum(-(-t.numel() * t.element_size() // 64) * 64 for t in out)
            assert declared <= sum(counter.total.values()) <= declared + outputs


def test_unplanned_allocations_are_named_by_operator() -> None:
    executor = bind_module(models.Decoder, models.Decoder().eval(), {"ids": random_ids(2, 6, high=50)})
    by_operator = {row.operator: row for row in executor.unplanned_allocations}
    norm = by_operator["aten.native_layer_norm.default"]
    assert norm.calls == 5
    assert norm.peak >= 2 * 6 * 32 * 4
    assert norm.bytes >= norm.calls * 2 * 6 * 32 * 4
    assert not any(name.startswith(("aten.addmm", "aten.embedding", "aten.gelu")) for name in by_operator)


def test_binding_restores_random_state_and_grad_mode() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    bind_module(zoo.RandomOperators, zoo.RandomOperators(), {"x": X})
    assert torch.get_rng_state().equal(before)
    assert torch.is_grad_enabled()


def test_autocast_and_inference_mode_around_a_call_change_nothing() -> None:
    real = randomize(models.Decoder()).eval()
    inputs = {"ids": random_ids(2, 6, high=50)}
    with torch.inference_mode():
        executor = bind_module(models.Decoder, real, inputs)
        inference = executor(**inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = executor(**inputs)
    expected = run_eager(real, inputs)
    assert not any(differing_outputs(outputs, expected) for outputs in (inference, cast, executor(**inputs)))


def test_threads_take_turns() -> None:
    real = randomize(models.Decoder()).eval()
    batches = [{"ids": random_ids(2, 6, high=50, seed=s)} for s in range(4)]
    executor = bind_module(models.Decoder, real, batches[0])
    expected = [run_eager(real, inputs) for inputs in batches]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(15):
            wrong.extend(differing_outputs(executor(**batches[index]), expected[index]))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_call_from_inside_a_step_is_refused() -> None:
    executor = bind_module(models.Cached, models.Cached().eval(), {"x": torch.zeros(1, 16)})
    errors: list[TmmuError] = []
    x = torch.zeros(1, 16)

    class Calling(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not errors:
                with pytest.raises(InvalidConfig, match="inside its own step") as caught:
                    executor(x=x)
                errors.append(caught.value)
            return func(*args, **(kwargs or {}))

    with Calling():
        executor(x=x)
    assert len(errors) == 1
    executor(x=x)


def test_commit_seals_what_ran(cached_executor: tuple[Executor, nn.Module]) -> None:
    executor, _ = cached_executor
    start = executor.commit()
    executor(x=torch.zeros(1, 16))
    sealed = executor.commit()
    digest = executor._bound.plan.digest
    assert sealed.digest == blake3(start.digest + digest + start.batch.to_bytes(8, "little")).digest()
    assert executor.commit() is sealed


def shared_segments(**sizes: int) -> Segments:
    return Segments(SegmentSizes(**{"text": 1 << 16, "data": 1 << 14, "stack": 1 << 16} | sizes))


def test_shared_segments_have_weights_once_and_state_by_session() -> None:
    real, second_model = randomize(models.Cached()).eval(), randomize(models.Cached(), seed=3).eval()
    x = torch.ones(1, 16)
    program, _ = capture_program(models.Cached, {"x": x})
    plan, segments = plan_of(program), shared_segments()
    both = [
        bind(program, plan, token=TOKEN, weights=weights_of(real), segments=segments, session=name) for name in "ab"
    ]
    used = segments.text.usage.used
    third = bind(program, plan, token=TOKEN, weights=weights_of(second_model), segments=segments, session="c")
    assert segments.text.usage.used == 2 * used
    assert segments.data.sessions == ("a", "b", "c")
    assert segments.stack.usage.used == 0
    (first,) = both[0](x=x)
    both[0](x=x)
    assert differing_outputs(both[1](x=x), [first]) == []
    assert not third(x=x)[0].equal(first)
    both[0].close()
    both[0].close()
    assert segments.data.sessions == ("b", "c")
    with pytest.raises(InvalidConfig, match="closed"):
        both[0](x=x)
    assert both[1](x=x)[0].shape == first.shape


@pytest.mark.parametrize("short", ["text", "data", "stack"])
def test_segment_too_small_is_named_and_nothing_stays_reserved(short: str) -> None:
    program, _ = capture_program(models.Cached, {"x": torch.zeros(1, 16)})
    segments = shared_segments(**{short: 256})
    with pytest.raises(SegmentFull, match=short):
        bind(program, plan_of(program), token=TOKEN, weights=weights_of(models.Cached()), segments=segments)
    assert [usage.used for usage in segments.usage.values()] == [0, 0, 0]
    assert segments.data.sessions == ()


def test_adopted_weights_stay_where_the_module_keeps_them() -> None:
    real = randomize(nn.Linear(4, 3))
    inputs = {"input": torch.randn(2, 4)}
    program, constants = capture_program(lambda: nn.Linear(4, 3), inputs)
    executor = bind(program, plan_of(program), token=TOKEN, weights=constants | weights_of(real), adopt=True)
    assert executor.segments.usage["text"].capacity == 0
    for _ in range(2):
        assert executor(**inputs)[0].equal(run_eager(real, inputs)[0])
        with torch.no_grad():
            real.weight.mul_(2)
    with pytest.raises(InvalidConfig, match="no value is given for bias"):
        bind(program, plan_of(program), token=TOKEN, weights={"weight": real.weight}, adopt=True)


def test_adopted_weights_of_a_file_get_memory_of_their_own(tmp_path: Path) -> None:
    real = randomize(nn.Linear(4, 3))
    inputs = {"input": torch.randn(2, 4)}
    program, _ = capture_program(lambda: nn.Linear(4, 3), inputs)
    save_file({"weight": real.weight.detach()}, tmp_path / "w.safetensors")
    weights = {"bias": real.bias, **stored_tensors(tmp_path)}
    executor = bind(program, plan_of(program), token=TOKEN, weights=weights, adopt=True)
    assert executor(**inputs)[0].equal(run_eager(real, inputs)[0])


def test_state_of_a_closed_executor_is_refused() -> None:
    executor = bind_module(models.Cached, randomize(models.Cached()).eval(), {"x": torch.zeros(1, 16)})
    assert executor.states
    executor.close()
    with pytest.raises(InvalidConfig, match="the executor is closed"):
        executor.state("keys")
