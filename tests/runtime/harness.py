"""Helpers that plan and bind a module, and run it beside the module itself."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tmmu.driver import PlanRequest
from tmmu.ir.program import Program
from tmmu.model_run import RunRequest, run_model
from tmmu.passes.capture.constants import constant_values
from tmmu.passes.capture.fake.compatibility import real_looking_fakes
from tmmu.passes.capture.fake.initialization import quick_initialization
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.trace import fake_environment, trace
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.capture.workload import Workload
from tmmu.passes.pipeline import lower_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed
from tmmu.runtime.compare.run import RunReport
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor

TOKEN = token_from_seed(7)
Make = Callable[[], nn.Module]
Tensors = dict[str, torch.Tensor]


def capture_program(
    make: Make, inputs: Mapping[str, torch.Tensor], *, mode: str = "inference", **options: Any
) -> tuple[Program, Tensors]:
    """The module's program on these inputs, and the values of its constants."""
    with fake_environment("cpu"):
        with Recorder(), quick_initialization():
            module = make()
        kwargs = {
            name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, requires_grad=t.requires_grad)
            for name, t in inputs.items()
        }
        work = Workload(name="m", folder="", run=module, module=module, kwargs=kwargs, **options)
        with real_looking_fakes():
            traced = trace(work, CaptureRequest(model="m", device="cpu", mode=mode), no_progress)
    return lower_program(traced), constant_values(traced)


def plan_of(program: Program, *, mode: str = "inference", preset: str = "inference", **options: Any) -> Any:
    arenas = options.pop("arenas", default_arenas())
    return prepare_memory(program.graph, mode=mode, preset=preset, token=TOKEN, arenas=arenas, **options)


def weights_of(module: nn.Module) -> Tensors:
    return {name: t.detach() for name, t in [*module.named_parameters(), *module.named_buffers()]}


def bind_module(
    make: Make,
    real: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    *,
    mode: str = "inference",
    preset: str = "inference",
    **options: Any,
) -> Executor:
    """An executor with the weights of ``real``."""
    program, constants = capture_program(make, inputs, mode=mode, **options)
    plan = plan_of(program, mode=mode, preset=preset)
    return bind(program, plan, token=TOKEN, weights=constants | weights_of(real))


def run_eager(real: nn.Module, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the module returns, views that coincide only once, as a graph lists its outputs."""
    with torch.no_grad():
        tensors = [tensor for _, tensor in named_tensors(real(**inputs))]
    return list({(t.data_ptr(), t.shape, t.stride(), t.dtype, t.is_conj(), t.is_neg()): t for t in tensors}.values())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8))
    )


def randomize(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random floating parameters, so that no zero or one hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return module


def random_ids(*shape: int, high: int, seed: int = 0) -> torch.Tensor:
    draw = random.Random(seed)
    count = 1
    for n in shape:
        count *= n
    return torch.tensor([draw.randrange(high) for _ in range(count)]).view(shape)


def run_checked(model: str, *, sanitize: bool = False) -> RunReport:
    """One run of what ``tmmu run MODEL --check`` runs; raises where it has other bits than the model itself."""
    run_request = RunRequest(seed=0, weights=None, check=True, sanitize=sanitize)
    plan_request = PlanRequest(mode="inference", preset="inference", token=TOKEN, arenas=default_arenas())
    return run_model(CaptureRequest(model=model, device="cpu"), plan_request, run_request, no_progress)[1]
