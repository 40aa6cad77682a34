"""One architecture to run in two ways: the module with random weights, and its program bound in a plan."""

import inspect
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import transformers

from benchmarks.small import IMAGE_TOKEN
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program
from tmmu.passes.capture.constants import constant_values
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.targets.huggingface import example_inputs
from tmmu.passes.capture.trace import capture
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.pipeline import lower_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.execute.inputs import InputSpec, input_specs

TOKEN = token_from_seed(4)
WEIGHT_SCALE = 0.05
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A class of transformers, its configuration, and the shape of a call."""

    model: str
    config: Any
    dtype: str
    batch: int
    sequence: int | None
    training: bool


class Subject:
    """The module of a workload, its captured program and its plan, each made when first used."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.dtype: torch.dtype = getattr(torch, work.dtype)

    @cached_property
    def _capture(self) -> tuple[Program, dict[str, torch.Tensor]]:
        work = self.work
        with tempfile.TemporaryDirectory() as folder:
            work.config.architectures = [work.model]
            work.config.save_pretrained(folder)
            traced = capture(
                CaptureRequest(
                    model=f"hf:{folder}",
                    device="cpu",
                    mode=self.mode,
                    batch=work.batch,
                    seq=work.sequence,
                    dtype=work.dtype,
                ),
                no_progress,
            )
        return lower_program(traced), constant_values(traced)

    @property
    def mode(self) -> str:
        return "backward" if self.work.training else "inference"

    @property
    def program(self) -> Program:
        return self._capture[0]

    @cached_property
    def plan(self) -> Plan:
        preset = "remat_enabled" if self.work.training else "inference"
        arenas = default_arenas(alignment=64)
        return prepare_memory(self.program.graph, mode=self.mode, preset=preset, token=TOKEN, arenas=arenas)

    @cached_property
    def module(self) -> Any:
        """The module with random parameters: initialization leaves zeros, ones, and some memory as it happens to be."""
        model = getattr(transformers, self.work.model)._from_config(self.work.config, dtype=self.dtype)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                center = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * WEIGHT_SCALE + center)
        if hasattr(model.config, "use_cache"):
            model.config.use_cache = False
        return model.train(self.work.training)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Weights to bind: constants of the trace, and the module's own."""
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        return self._capture[1] | {name: tensor.detach() for name, tensor in named}

    def executor(self, **options: Any) -> Executor:
        return bind(self.program, self.plan, token=TOKEN, weights=self.weights, **options)

    def example_inputs(self) -> dict[str, torch.Tensor]:
        """Random values of the forms that a capture makes, drawn without one."""
        work, generator = self.work, torch.Generator().manual_seed(0)
        request = CaptureRequest(
            model="hf:", device="cpu", mode=self.mode, batch=work.batch, seq=work.sequence, dtype=work.dtype
        )
        forms = example_inputs(self.module, work.config, request, self.dtype, supervised=work.training)
        specs = [
            InputSpec(value=0, name=name, shape=tuple(form.shape), dtype=form.dtype, device=form.device)
            for name, form in forms.items()
            if isinstance(form, torch.Tensor)
        ]
        return {spec.name: self._draw(spec, generator) for spec in specs}

    def inputs(self, seed: int) -> dict[str, torch.Tensor]:
        """Random values that the architecture accepts, by input."""
        generator = torch.Generator().manual_seed(seed)
        specs = input_specs(self.program.graph, torch.device("cpu"))
        return {spec.name: self._draw(spec, generator) for spec in specs}

    def _draw(self, spec: InputSpec, generator: torch.Generator) -> torch.Tensor:
        if spec.dtype.is_floating_point:
            return torch.randn(spec.shape, generator=generator).to(spec.dtype)
        drawn = torch.randint(0, self._classes(spec), spec.shape, generator=generator).to(spec.dtype)
        token = getattr(self.work.config, "image_token_id", None)
        if spec.name == "input_ids" and token is not None:
            drawn[:, : self._patches()] = token
        return drawn

    def _classes(self, spec: InputSpec) -> int:
        """The exclusive upper bound of an integral input: for tokens, those that do not stand for an image."""
        if spec.name == "labels" and len(spec.shape) != 2:
            return int(self.work.config.num_labels)
        return min(int(self.work.config.get_text_config(decoder=True).vocab_size), IMAGE_TOKEN)

    def _patches(self) -> int:
        vision = self.work.config.vision_config
        return int((vision.image_size // vision.patch_size) ** 2)

    def call(self, inputs: Tensors) -> list[torch.Tensor]:
        """What the module returns in eager: outputs, or, to train, the loss and the gradients."""
        extra: dict[str, Any] = {}
        names = inspect.signature(self.module.forward).parameters
        if "use_cache" in names:
            extra["use_cache"] = False
        if not self.work.training:
            with torch.no_grad():
                return distinct([tensor for _, tensor in named_tensors(self.module(**inputs, **extra))])
        if "return_loss" in names and "labels" not in inputs:
            extra["return_loss"] = True
        self.module.zero_grad(set_to_none=True)
        loss = self.module(**inputs, **extra).loss
        loss.backward()
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        return distinct([loss.detach(), *gradients])


def distinct(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, views that coincide only once, as a graph lists its outputs."""
    return list({(t.data_ptr(), t.shape, t.stride(), t.dtype): t for t in tensors}.values())
