"""The plans of a compiled graph: one for each shape, with weights in place, bit for bit what eager computes."""

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.compiled import CASES, Mlp, all_planned, compile_planned, the_report
from tests.runtime.harness import same_bits
from tmmu.backend import reports

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_inference_has_the_bits_of_eager(name: str, grad: Any) -> None:
    make, shape = CASES[name]
    model = make().eval()
    run = compile_planned(model)
    with grad():
        for _ in range(3):
            x = torch.randn(shape)
            assert same_bits(run(x), model(x))
    assert all_planned()


def test_results_outlive_the_next_call() -> None:
    model = Mlp().eval()
    run = compile_planned(model)
    with torch.no_grad():
        inputs = [torch.randn(4, 6) for _ in range(3)]
        results = [run(x) for x in inputs]
        assert all(same_bits(result, model(x)) for result, x in zip(results, inputs, strict=True))
    assert all_planned()


def test_weights_are_used_in_place() -> None:
    """Changes of them, by an optimizer or by anyone, are seen, and nothing copies them."""
    model = nn.Linear(64, 64)
    run = compile_planned(model)
    x = torch.randn(2, 64)
    with torch.no_grad():
        run(x)
        model.weight.mul_(2)
        assert same_bits(run(x), model(x))
    assert max(the_report().stack_bytes) < model.weight.numel() * 4


def test_exchanged_weights_bind_the_plan_again() -> None:
    model = Mlp().eval()
    run = compile_planned(model)
    x = torch.randn(4, 6)
    with torch.no_grad():
        run(x)
        for parameter in model.parameters():
            parameter.data = torch.randn_like(parameter)
        assert same_bits(run(x), model(x))
    assert len(the_report().stack_bytes) == 1
    assert all_planned()


def test_binding_leaves_buffers_unchanged() -> None:
    """Validation must not count as a batch."""
    model, real = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    run = compile_planned(model)
    x = torch.randn(3, 4)
    run(x), real(x)
    assert same_bits(model.running_mean, real.running_mean)  # type: ignore[arg-type]
    assert same_bits(model.num_batches_tracked, real.num_batches_tracked)  # type: ignore[arg-type]


def outcome(run: Any, x: torch.Tensor) -> str:
    """What ends the call, or nothing."""
    try:
        run(x)
    except RuntimeError as error:
        return str(error).partition("(")[0]
    return ""


@pytest.mark.parametrize("training", [True, False])
def test_norm_of_a_transposed_input_ends_as_it_does_without_plans(training: bool) -> None:
    """Torch 2.13 traces other strides than its kernel makes, so that both end; a contiguous input has a plan."""
    norm, linear = nn.BatchNorm1d(8).train(training), nn.Linear(8, 4)
    x = torch.randn(2, 5, 8)

    def transposed(x: torch.Tensor) -> Any:
        return linear(norm(x.transpose(1, 2)).transpose(1, 2))

    def contiguous(x: torch.Tensor) -> Any:
        return linear(norm(x.transpose(1, 2).contiguous()).transpose(1, 2))

    assert outcome(compile_planned(transposed), x) == outcome(torch.compile(transposed, backend="aot_eager"), x)
    compiled = compile_planned(contiguous)
    torch._dynamo.reset()
    assert same_bits(compiled(x), contiguous(x))
    assert reports()[-1].planned == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_graph_break_makes_two_plans() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        torch._dynamo.graph_break()
        return y.cos() * x

    run = compile_planned(broken)
    for _ in range(2):
        x = torch.randn(8, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        run(x).sum().backward()
        broken(y).sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        assert same_bits(x.grad, y.grad)
    assert len(reports()) == 2
    assert all_planned()


def test_plans_are_found_again_by_shape() -> None:
    model = Mlp().eval()
    shapes = (2, 5, 9)
    for origin in ("cold", "table"):
        torch._dynamo.reset()
        gc.collect()
        run = compile_planned(model, dynamic=False)
        with torch.no_grad():
            for n in (*shapes, *shapes):
                x = torch.randn(n, 6)
                assert same_bits(run(x), model(x))
        assert [dict(report.plans) for report in reports()] == [{origin: 1}] * 3
        assert all_planned()


@pytest.mark.parametrize("grad", [False, True])
def test_dynamic_shapes_are_planned_one_by_one(grad: bool) -> None:
    model = Mlp()
    real = copy.deepcopy(model)
    run = compile_planned(model, dynamic=True)
    for n in (4, 7, 11, 7, 4):
        x = torch.randn(n, 6)
        with torch.set_grad_enabled(grad):
            planned, expected = run(x), real(x)
        assert same_bits(planned, expected)
        if grad:
            (planned.sum() * n).backward(), (expected.sum() * n).backward()
    for weight, eager_weight in zip(model.parameters(), real.parameters(), strict=True):
        assert (weight.grad is None) == (eager_weight.grad is None) == (not grad)
        assert not grad or same_bits(weight.grad, eager_weight.grad)  # type: ignore[arg-type]
    assert len(reports()) == 1
    assert dict(the_report().plans) == {"cold": 3}
    assert all_planned()


def test_specializations_beyond_the_limit_evict_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmmu.backend.MAX_SPECIALIZATIONS", 2)
    run = compile_planned(lambda x: x.sin() + 1, dynamic=True)
    for n in (3, 4, 5, 6, 3):
        x = torch.randn(n)
        assert same_bits(run(x), x.sin() + 1)
    assert len(the_report().stack_bytes) == 2
    assert sum(the_report().plans.values()) == 5


def test_results_may_be_sizes_and_numbers() -> None:
    function = lambda x, k: (x * k, x.shape[0] * 2, x.view(x.shape[1], -1))  # noqa: E731
    run = compile_planned(function, dynamic=True)
    for n, k in ((4, 2), (6, 3), (8, 5)):
        x = torch.randn(n, 6)
        planned, expected = run(x, k), function(x, k)
        assert planned[1] == expected[1]
        assert same_bits(planned[0], expected[0])
        assert same_bits(planned[2], expected[2])
    assert all_planned()


def test_memory_is_freed_with_the_model() -> None:
    model = Mlp()
    compile_planned(model)(torch.randn(4, 6)).sum().backward()
    assert len(reports()) == 1
    torch._dynamo.reset()
    gc.collect()
    assert reports() == ()
