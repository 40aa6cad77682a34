"""``tmmu.plan``: from a model or a step, as it is in memory, to a judged plan."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from tmmu.api.arguments import texts_of
from tmmu.api.memory_plan import MemoryPlan
from tmmu.api.size_search import ModelSizes
from tmmu.driver import Compiled, PlanRequest, compile_live
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import TARGETS
from tmmu.passes.capture.replace import TRACE_LOCK
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.routing.factor import parse_factor
from tmmu.passes.capture.tree import named_tensors
from tmmu.planner.arenas import parse_arenas
from tmmu.planner.token import token_from_seed
from tmmu.rank_plans import FULLEST, compile_ranks, rank_number, require_world


def plan(  # noqa: PLR0913 - the options of one plan, by name
    model_or_step: Any,
    inputs: Any = None,
    *,
    training: bool | None = None,
    device: Literal["cuda", "cpu"] | torch.device = "cuda",
    loss: Literal["cross_entropy", "mse", "sum"] | None = None,
    optimizer: str | None = None,
    autocast: Literal["bf16", "fp16"] | None = None,
    preset: Literal["train_full", "inference", "remat_enabled"] | None = None,
    arenas: Sequence[str] = (),
    seed: int = 0,
    world: int | None = None,
    rank: int | Literal["first", "last", "fullest"] = "fullest",
    capacity_factor: float | None = None,
) -> MemoryPlan:
    """The plan of a module, or of a step function with all that it closes over; nothing of theirs is moved or changed.

    ``inputs``: one tensor, a tuple of positional arguments, or a dict of keyword arguments; real, fake or meta. A step
    of one parameter takes them whole.
    ``training``: plan a training step of a module, with ``loss`` (default: the loss that it returns) and ``optimizer``
    (as ``--optimizer`` of ``tmmu plan``); by default for a module where one of these two is named. A function is a step
    of its own, with gradients where it takes them. ``device`` need not be there. ``arenas`` as ``--arena``.
    ``world``: plan one ``rank`` of so many, in a process group made for it; ``model_or_step`` is then a function that
    makes the sharded module, and the plan's ``ranks`` are all kinds where the ``fullest`` is planned.
    ``capacity_factor``: plan for experts that get so many times their even share of tokens at most, where counts of
    tokens decide the step; the plan's ``routings`` say what was assumed.
    Errors: those of ``tmmu plan``, as exceptions with ``code`` and ``fix``. Takes as long as a trace: nothing is
    computed, and memory does not grow with the weights.
    """
    target = _require_target(device)
    number = _require_rank(model_or_step, world, rank)
    factor = None if capacity_factor is None else parse_factor(capacity_factor, "capacity_factor")
    named: dict[str, Any] = {"loss": loss, "optimizer": optimizer, "autocast": autocast}
    mode = step_or_module_mode(model_or_step, training=training, **named, makes_module=world is not None)
    request = CaptureRequest(model="", mode=mode, device=target, **named, world=world, capacity_factor=factor)
    plan_request = _plan_request(mode, preset, seed, arenas)

    def make_plan(planned: Any, some_inputs: Any) -> MemoryPlan:
        def compile_rank(number: int) -> Compiled:
            return compile_live(planned, some_inputs, replace(request, rank=number), plan_request)

        with logs_off():
            ranks = compile_ranks(world, compile_rank) if world is not None and number is None else None
            compiled = compile_rank(number or 0) if ranks is None else ranks.fullest
        return MemoryPlan(
            graph=compiled.graph,
            plan=compiled.plan,
            first_step=compiled.first_step,
            assumed=compiled.assumed,
            routings=compiled.routings,
            ranks=() if ranks is None else ranks.kinds,
            rank_reads=() if ranks is None else ranks.reads,
            sizes=ModelSizes.of(planned, some_inputs, make_plan, plan_request.token),
        )

    return make_plan(model_or_step, inputs)


def _plan_request(mode: str, preset: str | None, seed: int, arenas: Sequence[str]) -> PlanRequest:
    is_evaluation = mode == "inference"
    return PlanRequest(
        mode="inference" if is_evaluation else "backward",
        preset=("inference" if is_evaluation else "train_full") if preset is None else preset,
        token=token_from_seed(seed),
        arenas=parse_arenas(texts_of(arenas, "arenas")),
    )


def _require_target(device: str | torch.device) -> str:
    name = device.type if isinstance(device, torch.device) else device
    if name not in TARGETS:
        raise InvalidConfig(f"no device {name!r:.80}", fix=f"name one of {', '.join(TARGETS)}")
    return name


def _require_rank(maker: Any, world: int | None, rank: int | str) -> int | None:
    """The number of the rank; ``None`` for the fullest, and without ``world``."""
    if world is None:
        if rank != FULLEST:
            raise InvalidConfig(f"rank={rank!r:.40} is one of a world", fix="give world too, or leave it out")
        return None
    if isinstance(maker, (nn.Module, type)) or not callable(maker):
        raise InvalidConfig(
            f"with world, a {type(maker).__name__} is made too early: a model is sharded inside of its process group",
            fix="give a function that makes the model",
        )
    return rank_number(rank, require_world(world))


def step_or_module_mode(  # noqa: PLR0913 - the options of one plan, by name
    model_or_step: Any,
    *,
    training: bool | None,
    loss: str | None,
    optimizer: str | None,
    autocast: str | None,
    makes_module: bool = False,
) -> Literal["step", "backward", "inference"]:
    """How a model or step is captured; ``INVALID_CONFIG`` for what is neither, and for options that it has itself."""
    if isinstance(model_or_step, (type, str)):
        raise InvalidConfig(
            f"{model_or_step!r:.80} is neither a module nor a function", fix="make the model, and give that"
        )
    if training is not None and not isinstance(training, bool):
        raise InvalidConfig(f"training={training!r:.80} is neither True nor False", fix="write one of the two")
    if isinstance(model_or_step, nn.Module) or makes_module:
        trains = bool(loss or optimizer) if training is None else training
        return "backward" if trains else "inference"
    if training is not None or loss or optimizer or autocast:
        raise InvalidConfig(
            "training, loss, optimizer and autocast are for a module: a step has its own", fix="leave them out"
        )
    return "step"


@contextmanager
def logs_off() -> Iterator[None]:
    """Block without log records: torch logs what a trace refuses, of which the error says all. Threads wait for it."""
    with TRACE_LOCK:
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def device_of_call(model_or_step: Any, inputs: Any) -> torch.device:
    """Where the first tensor of the inputs or of the model lies; ``INVALID_CONFIG`` for one without bytes."""
    parameters = model_or_step.parameters() if isinstance(model_or_step, nn.Module) else ()
    tensors = (*(tensor for _, tensor in named_tensors(inputs)), *parameters)
    device = tensors[0].device if tensors else torch.device("cpu")
    if device.type not in ("cpu", "cuda"):
        raise InvalidConfig(f"nothing runs on {device}", fix="move model and inputs to a CPU or a GPU")
    return torch.device(device.type, device.index or torch.cuda.current_device()) if device.type == "cuda" else device
