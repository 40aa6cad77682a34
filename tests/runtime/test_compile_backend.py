"""``torch.compile(model, backend="tmmu")`` is the model, bit for bit, inside plans, with all that autograd allows."""

import copy
import gc
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.runtime.harness import same_bits
from tmmu.backend import GraphReport, reports
from tmmu.errors import InvalidConfig

pytestmark = pytest.mark.usefixtures("fresh_compiler")

F = nn.functional


def compile_planned(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(model, backend="tmmu", **options)  # type: ignore[no-any-return, call-overload]


def the_report() -> GraphReport:
    (report,) = reports()
    return report


def all_planned() -> bool:
    return bool(reports()) and all(report.planned > 0 and not report.plain for report in reports())


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Dropout(dropout), nn.Linear(12, 5), nn.Tanh()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).mean((2, 3))  # type: ignore[no-any-return]


def train(
    run: Callable[..., torch.Tensor], model: nn.Module, batches: list[torch.Tensor], kind: Any = torch.optim.SGD
) -> list[torch.Tensor]:
    """The losses of one step for each batch."""
    optimizer = kind(model.parameters(), lr=0.1)
    losses = []
    for step, batch in enumerate(batches):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = run(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return losses


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (Mlp, (4, 6)),
    "dropout": (lambda: Mlp(dropout=0.15), (64, 6)),
    "batch norm": (Normed, (3, 3, 8, 8)),
}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("name", CASES)
def test_training_has_the_losses_and_weights_of_eager(name: str, kind: Any) -> None:
    make, shape = CASES[name]
    model = make()
    real = copy.deepcopy(model)
    batches = [torch.randn(shape) for _ in range(5)]
    planned = train(compile_planned(model), model, batches, kind)
    expected = train(real, real, batches, kind)
    assert all(map(same_bits, planned, expected))
    for (label, weight), eager_weight in zip(model.state_dict().items(), real.state_dict().values(), strict=True):
        assert same_bits(weight, eager_weight), label
    assert all_planned()
    assert the_report().trains
    assert the_report().planned == 10


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


def test_forwards_before_their_backwards_do_not_disturb_each_other() -> None:
    """Step memory for the first four, torch for the rest; each backward finds the residuals of its own forward."""
    model = Mlp()
    real = copy.deepcopy(model)
    run = compile_planned(model)
    inputs = [torch.randn(4, 6) for _ in range(7)]
    for order in ([*range(7)], [*reversed(range(7))], [3, 0, 6, 2, 5, 1, 4]):
        for module, function in ((model, run), (real, real)):
            module.zero_grad()
            losses = [function(x).square().sum() for x in inputs]
            for index in order:
                losses[index].backward()
        for planned, eager in zip(model.parameters(), real.parameters(), strict=True):
            assert planned.grad is not None
            assert eager.grad is not None
            assert same_bits(planned.grad, eager.grad)
    assert len(the_report().stack_bytes) == 4
    assert the_report().plain["more steps are under way than there are frames"] >= 3


def test_forward_without_a_backward_frees_its_memory() -> None:
    model = Mlp()
    run = compile_planned(model)
    for _ in range(9):
        run(torch.randn(4, 6))
    assert len(the_report().stack_bytes) == 1
    assert all_planned()


def test_retained_graph_gives_the_gradient_again() -> None:
    model = Mlp()
    real = copy.deepcopy(model)
    x = torch.randn(4, 6)
    for module, run in ((model, compile_planned(model)), (real, real)):
        loss = run(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        assert module is not None
    for planned, eager in zip(model.parameters(), real.parameters(), strict=True):
        assert planned.grad is not None
        assert eager.grad is not None
        assert same_bits(planned.grad, eager.grad)


@pytest.mark.parametrize("weights", [True, False], ids=["weights too", "but weights"])
def test_saved_tensors_may_be_moved_by_hooks(weights: bool) -> None:
    """Residuals at other addresses are loaded; with weights at other addresses torch runs the graph."""
    model = Mlp()
    real = copy.deepcopy(model)
    x = torch.randn(4, 6)
    run = compile_planned(model)
    pointers = {parameter.data_ptr() for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t if t.data_ptr() in pointers and not weights else t.clone(), lambda t: t
    ):
        loss = run(x).square().sum()
    run(x + 1)
    loss.backward()
    real(x).square().sum().backward()
    for planned, eager in zip(model.parameters(), real.parameters(), strict=True):
        assert same_bits(planned.grad, eager.grad)  # type: ignore[arg-type]
    assert sum(the_report().plain.values()) == int(weights)


def test_double_backward_is_refused() -> None:
    x = torch.randn(4, requires_grad=True)
    (gradient,) = torch.autograd.grad(compile_planned(lambda x: x.tanh().sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"double backward|does not require grad"):  # torch 2.13, torch 2.11
        gradient.sum().backward()


def test_inputs_get_gradients_where_weights_need_none() -> None:
    model = Mlp().requires_grad_(requires_grad=False)
    run = compile_planned(model)
    for _ in range(2):
        x = torch.randn(4, 6, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        run(x).square().sum().backward()
        model(y).square().sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        assert same_bits(x.grad, y.grad)
    assert all_planned()


def test_residuals_that_are_only_arguments_find_their_own_step() -> None:
    """No residual lies in the step's memory, so that it is free before the backward."""
    run = compile_planned(lambda x, y: x * y)
    pairs = [[torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)] for _ in range(3)]
    results = [run(*pair) for pair in pairs]
    for result in results:
        result.sum().backward()
    for x, y in pairs:
        assert x.grad is not None
        assert y.grad is not None
        assert x.grad.equal(y.detach())
        assert y.grad.equal(x.detach())
    assert all_planned()


@pytest.mark.parametrize("grad", [False, True])
def test_changed_buffers_get_a_new_version(grad: bool) -> None:
    """Autograd must notice a change of what it saved."""
    model = nn.BatchNorm1d(4)
    run = compile_planned(model)
    before = model.running_mean._version  # type: ignore[union-attr]
    with torch.set_grad_enabled(grad):
        run(torch.randn(3, 4))
        run(torch.randn(3, 4))
    assert model.running_mean._version >= before + 2  # type: ignore[union-attr]


def test_binding_leaves_buffers_unchanged() -> None:
    """Validation must not count as a batch."""
    model, real = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    run = compile_planned(model)
    x = torch.randn(3, 4)
    run(x), real(x)
    assert same_bits(model.running_mean, real.running_mean)  # type: ignore[arg-type]
    assert same_bits(model.num_batches_tracked, real.num_batches_tracked)  # type: ignore[arg-type]


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


class CountingMode(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def test_dispatch_mode_sees_every_operator() -> None:
    run = compile_planned(lambda x: x.sin() + 1)
    x = torch.randn(5)
    run(x)
    with CountingMode() as mode, torch.compiler.set_stance("default", skip_guard_eval_unsafe=False):
        boxed = run(x)
    assert same_bits(boxed, x.sin() + 1)
    assert "aten.sin.default" in mode.operators


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


def test_two_models_do_not_disturb_each_other() -> None:
    models = [Mlp(), Mlp()]
    reals = copy.deepcopy(models)
    runs = [compile_planned(model) for model in models]
    for _ in range(3):
        x = torch.randn(4, 6)
        (runs[0](x) - runs[1](x * 2)).square().sum().backward()
        (reals[0](x) - reals[1](x * 2)).square().sum().backward()
    for planned, eager in zip(models, reals, strict=True):
        for weight, eager_weight in zip(planned.parameters(), eager.parameters(), strict=True):
            assert same_bits(weight.grad, eager_weight.grad)  # type: ignore[arg-type]
    assert all_planned()


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="Dynamo's own switch was one for all threads")
def test_threads_do_not_disturb_each_other() -> None:
    model = Mlp()
    run = compile_planned(model)
    run(torch.randn(4, 6)).sum().backward()
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            x = torch.randn(4, 6, generator=generator, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            gradient = torch.autograd.grad(run(x).square().sum(), x)[0]
            if not same_bits(gradient, torch.autograd.grad(model(y).square().sum(), y)[0]):
                wrong.append(f"seed {seed}")

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="Dynamo itself refused the graph, and asked no backend")
def test_unplannable_graphs_run_without_a_plan_and_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1

    run = compile_planned(function)
    x = torch.randn(5)
    with caplog.at_level(logging.WARNING, logger="tmmu"):
        for _ in range(3):
            assert same_bits(run(x), function(x))
    assert len(caplog.records) == 1
    assert "UNSUPPORTED_OP" in caplog.text
    assert sum(the_report().plain.values()) == 3


def test_nothing_is_bound_while_a_profiler_runs() -> None:
    run = compile_planned(lambda x: x.sin() + 1)
    x = torch.randn(5)
    with torch.autograd.profiler.profile():
        assert same_bits(run(x), x.sin() + 1)
    assert dict(the_report().plain) == {"a profiler is running": 1}
    assert same_bits(run(x), x.sin() + 1)
    assert the_report().planned == 1


def test_bad_indices_are_one_clear_error_and_the_next_call_is_right() -> None:
    model = nn.Embedding(4, 3)
    run = compile_planned(model)
    run(torch.tensor([1, 2]))
    with pytest.raises(InvalidConfig, match="index out of range"):
        run(torch.tensor([1, 9]))
    assert same_bits(run(torch.tensor([3, 0])), model(torch.tensor([3, 0])))


@pytest.mark.parametrize(
    "options", [{"mode": "reduce-overhead"}, {"options": {"level": 3}}, {"options": {"recompute": 1}}]
)
def test_unknown_modes_and_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="INVALID_CONFIG: backend tmmu knows no mode"):
        compile_planned(lambda x: x + 1, **options)(torch.randn(3))


class Composed(nn.Module):
    """An activation made of many cheap operators, and dropout, which must not be drawn twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 64), nn.Linear(64, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        y = y * 0.5 * (1 + torch.tanh(0.8 * (y + 0.04 * y.pow(3))))
        return self.outer(F.dropout(y, 0.15))  # type: ignore[no-any-return]


def test_recomputation_keeps_the_bits_and_takes_less_memory() -> None:
    model = Composed()
    reals = [copy.deepcopy(model) for _ in range(2)]
    batches = [torch.randn(64, 6) for _ in range(3)]
    expected = train(reals[0], reals[0], batches)
    sizes = []
    for module, options in ((model, {}), (reals[1], {"options": {"recompute": True}})):
        torch._dynamo.reset()
        assert all(map(same_bits, train(compile_planned(module, **options), module, batches), expected))
        sizes.append(reports()[-1].stack_bytes[0])
    assert sizes[1] < sizes[0]


def test_autocast_has_the_bits_of_eager() -> None:
    model = Mlp()
    real = copy.deepcopy(model)
    run = compile_planned(model)
    x = torch.randn(4, 6)
    for module, function in ((model, run), (real, real)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = function(x)
        result.float().square().sum().backward()
        assert module is not None
    for planned, eager in zip(model.parameters(), real.parameters(), strict=True):
        assert same_bits(planned.grad, eager.grad)  # type: ignore[arg-type]
    assert all_planned()


def test_memory_is_freed_with_the_model() -> None:
    model = Mlp()
    compile_planned(model)(torch.randn(4, 6)).sum().backward()
    assert len(reports()) == 1
    torch._dynamo.reset()
    gc.collect()
    assert reports() == ()


def test_backend_is_found_by_name_in_a_fresh_process(tmp_path: Path) -> None:
    program = (
        "import sys, torch\n"
        "assert 'tmmu' in torch._dynamo.list_backends()\n"
        "assert 'tmmu' not in sys.modules\n"
        "model = torch.nn.Linear(4, 4)\n"
        "x = torch.randn(2, 4)\n"
        "assert torch.compile(model, backend='tmmu')(x).equal(model(x))\n"
        "assert sys.modules['tmmu.backend'].reports()[0].planned == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
