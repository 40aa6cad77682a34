"""Compiled graphs beside other models, threads, modes and profilers, and calls that no plan can serve."""

import copy
import logging
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.runtime.compiled import Mlp, all_planned, compile_planned, the_report
from tests.runtime.harness import same_bits
from tmmu.errors import InvalidConfig

pytestmark = pytest.mark.usefixtures("fresh_compiler")


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


class PackedWeight(nn.Module):
    """A weight of four bits, two in a byte."""

    def __init__(self) -> None:
        super().__init__()
        codes = torch.randint(0, 16, (64, 64), dtype=torch.int32)
        self.register_buffer("codes", torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 2))
        self.register_buffer("scales", torch.rand(2, 64, 2).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.codes, 32, self.scales)


def test_packed_weights_of_four_bits_are_planned() -> None:
    module, x = PackedWeight(), torch.randn(4, 64).bfloat16()
    run = compile_planned(module)
    with torch.no_grad():
        for _ in range(2):
            assert same_bits(run(x), module(x))
    assert all_planned()


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


def test_kernels_of_a_graph_are_not_compiled_beside_it() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="INVALID_CONFIG: option fuse=auto is that of"):
        compile_planned(lambda x: x + 1, options={"fuse": "auto"})(torch.randn(3))


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
