"""A causal language model of transformers as the stages of a pipeline that one rank has, with the step of a schedule.

Each stage is the architecture without the layers of others, cut further by its own plans for ``tp``, ``ep`` and
``fsdp``. What comes before the layers is the first stage's and what comes after them the last one's, as the
architecture's ``pp_plan`` says; messages between stages are hidden states. The schedule is torch's own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.passes.capture.ranks.schedules import Schedule, layers_of_stage, parse_schedule
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.sharded import Distribution, distribution_of
from tmmu.passes.capture.training.losses import loss_of_output
from tmmu.passes.capture.training.optimizers import parse_optimizer
from tmmu.passes.capture.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """``batch`` sequences of ``length`` tokens; hidden states between stages are ``dtype[batch, length, width]``.

    ``trained``: what is sent has a gradient, which is sent back.
    """

    batch: int
    length: int
    width: int
    classes: int
    dtype: torch.dtype
    trained: bool

    def ids(self, count: int = 1) -> torch.Tensor:
        """``int64[count x batch, length]``."""
        return torch.zeros((count * self.batch, self.length), dtype=torch.int64)

    def hidden(self) -> torch.Tensor:
        """What a stage sends to the next."""
        return torch.zeros((self.batch, self.length, self.width), dtype=self.dtype, requires_grad=self.trained)

    def logits(self) -> torch.Tensor:
        """What the last stage returns."""
        return torch.zeros((self.batch, self.length, self.classes), dtype=self.dtype, requires_grad=self.trained)


def staged_workload(
    build: Callable[[], nn.Module], request: CaptureRequest, *, length: int, dtype: torch.dtype, name: str
) -> Workload:
    """The step of the request's rank. ``build`` makes the whole architecture, anew for each stage of the rank.

    ``batch`` of the request are the sequences of one micro-batch, ``length`` their tokens.
    """
    schedule = parse_schedule(request.schedule)
    whole: Any = build()
    _require_stages(whole, request, schedule)
    distribution = distribution_of(whole, request)
    text = whole.config.get_text_config(decoder=True)
    micro = MicroBatch(
        batch=request.batch,
        length=length,
        width=text.hidden_size,
        classes=text.vocab_size,
        dtype=dtype,
        trained=request.mode != "inference",
    )
    del whole
    group, count = distribution.stage_group(), request.pp * schedule.stages
    numbers = schedule.stages_of(group.rank(), request.pp)
    parts = nn.ModuleDict({str(number): _stage_module(build(), number, count, distribution) for number in numbers})
    stages = [_pipeline_stage(part, int(number), count, micro, group) for number, part in parts.items()]
    inputs = {"input_ids": micro.ids(request.micro_batches)} if 0 in numbers else {}
    if micro.trained and count - 1 in numbers:
        inputs["labels"] = micro.ids(request.micro_batches)
    make_step = _training_step if micro.trained else _evaluation_step
    return Workload(name=name, folder="", run=make_step(parts, stages, schedule, request), kwargs=inputs)


def _pipeline_stage(part: nn.Module, number: int, count: int, micro: MicroBatch, group: Any) -> Any:
    from torch.distributed.pipelining import PipelineStage  # noqa: PLC0415 - half a second to import

    taken = micro.ids() if number == 0 else micro.hidden()
    returned = micro.logits() if number == count - 1 else micro.hidden()
    return PipelineStage(part, number, count, taken.device, input_args=(taken,), output_args=(returned,), group=group)


def _schedule_of(stages: list[Any], schedule: Schedule, request: CaptureRequest, loss: Any) -> Any:
    """Torch's schedule of these stages; ``INVALID_CONFIG``, in its words, for numbers that it does not take."""
    from torch.distributed import pipelining  # noqa: PLC0415

    make = getattr(pipelining, schedule.torch_name)
    try:
        return make(stages[0] if schedule.is_single else stages, request.micro_batches, loss_fn=loss)
    except ValueError as error:
        raise InvalidConfig(
            f"--schedule {schedule} --microbatches {request.micro_batches}: {' '.join(str(error).split())[:200]}",
            fix="give another number of micro-batches, or another schedule",
        ) from error


def _evaluation_step(
    parts: nn.ModuleDict, stages: list[Any], schedule: Schedule, request: CaptureRequest
) -> Callable[..., Any]:
    parts.eval()
    pipeline = _schedule_of(stages, schedule, request, None)

    def step(**inputs: torch.Tensor) -> Any:
        with torch.no_grad():
            return pipeline.eval(*inputs.values())

    return step


def _training_step(
    parts: nn.ModuleDict, stages: list[Any], schedule: Schedule, request: CaptureRequest
) -> Callable[..., Any]:
    """A step as training scripts take it: outputs are not gathered, and losses are those of micro-batches."""
    parts.train()
    *_, last = parts.values()
    pipeline = _schedule_of(stages, schedule, request, _loss_of(last, request.loss))
    named = dict(parts.named_parameters())
    spec = None if request.optimizer is None else parse_optimizer(request.optimizer, request.device)
    optimizer = None if spec is None else spec.make(list(named.values()), keeps_numbers=False)

    def step(input_ids: torch.Tensor | None = None, labels: torch.Tensor | None = None) -> Any:
        losses: list[torch.Tensor] = []
        ids = () if input_ids is None else (input_ids,)
        supervision = {} if labels is None else {"target": labels, "losses": losses}
        pipeline.step(*ids, return_outputs=False, **supervision)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
            return [loss.detach() for loss in losses]
        gradients = {name: parameter.grad for name, parameter in named.items()}
        for parameter in named.values():
            parameter.grad = None
        return [loss.detach() for loss in losses], gradients

    return step


def _loss_of(model: Any, name: str | None) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The loss of the logits of a micro-batch: that of ``--loss``, or the architecture's own."""

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if name is not None:
            return loss_of_output(name, logits, _GivenLabels(labels))
        classes = model.config.get_text_config(decoder=True).vocab_size
        value: torch.Tensor = model.loss_function(logits=logits, labels=labels, vocab_size=classes)
        return value

    return loss


@dataclass(frozen=True, slots=True)
class _GivenLabels:
    """Gives a loss the labels that a schedule has cut out of those of the whole step."""

    labels: torch.Tensor

    def in_stage(self, stage: str, /, *, module: str = "") -> AbstractContextManager[None]:  # noqa: ARG002
        """A block as any."""
        return nullcontext()

    def keep_supervision(self, make: Callable[[], torch.Tensor], /, *, name: str) -> torch.Tensor:  # noqa: ARG002
        """The labels."""
        return self.labels


# -- what a stage has


def _require_stages(model: Any, request: CaptureRequest, schedule: Schedule) -> None:
    """``UNSUPPORTED_OP`` for an architecture that cannot be cut, ``INVALID_CONFIG`` for fewer layers than stages."""
    layers = _layers_of(model)
    if getattr(model, "all_tied_weights_keys", None):
        tied = ", ".join(model.all_tied_weights_keys)
        raise UnsupportedOp(
            f"--pp {request.pp}: {tied} is tied to the embedding, which another stage has: no schedule of torch adds "
            "up their gradients",
            fix='set "tie_word_embeddings": false in config.json, which gives the head weights of its own',
        )
    count = request.pp * schedule.stages
    if count > layers:
        raise InvalidConfig(
            f"--pp {request.pp}: the model has {layers} layers for {count} stages", fix="choose fewer stages"
        )


def _layers_of(model: Any) -> int:
    """How many layers it has; ``UNSUPPORTED_OP`` where its ``pp_plan`` does not name them, embedding and head."""
    parts = [model.get_submodule(path) for path in _planned_modules(model)]
    lists = [part for part in parts if isinstance(part, nn.ModuleList)]
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    if len(lists) != 1 or not all(any(end is part for part in parts) for end in ends):
        raise UnsupportedOp(
            f"--pp: transformers has no pp_plan for {type(model).__name__} that names embedding, layers and head",
            fix="leave it out, or write the stages in a file, with --world",
        )
    return len(lists[0])


def _planned_modules(model: Any) -> Mapping[str, Any]:
    """By path, inputs and outputs of the parts of a model that transformers names for pipelines and that are there."""
    present = {name for name, _ in model.named_modules()}
    return {name: plan for name, plan in (getattr(model, "pp_plan", None) or {}).items() if name in present}


def _stage_module(model: Any, number: int, count: int, distribution: Distribution) -> nn.Module:
    """The model as that stage, cut over the other ranks too; its ``forward`` takes and returns what is sent."""
    for path, (takes, _) in _planned_modules(model).items():
        owner, _, name = path.rpartition(".")
        parent, part = model.get_submodule(owner), model.get_submodule(path)
        if isinstance(part, nn.ModuleList):
            setattr(parent, name, StageLayers(part, layers_of_stage(number, count, len(part))))
        elif (0 if {"input_ids", "inputs_embeds"} & set(takes) else count - 1) != number:
            delattr(parent, name)
            setattr(parent, name, _passed)
    model.config.use_cache = False
    model.forward = _stage_forward(model, is_first=number == 0, is_last=number == count - 1)
    return distribution.apply(model)


def _stage_forward(model: Any, *, is_first: bool, is_last: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    slot = "input_ids" if is_first else "inputs_embeds"
    base, whole = model.base_model, model.forward

    def forward(received: torch.Tensor) -> torch.Tensor:
        arguments = {slot: received, "use_cache": False}
        hidden: torch.Tensor = whole(**arguments).logits if is_last else base(**arguments).last_hidden_state
        return hidden

    return forward


def _passed(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden


class PassedLayer:
    """Stands for a layer of another stage: gives back what it takes, and has the layer's plain attributes."""

    def __init__(self, layer: nn.Module) -> None:
        plain = {name: value for name, value in vars(layer).items() if isinstance(value, (bool, int, float, str))}
        vars(self).update(plain)

    def __call__(self, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """The hidden states."""
        return hidden


class StageLayers(nn.ModuleList):
    """The layers of one stage under their own numbers; whoever goes through all of them passes by the others."""

    def __init__(self, layers: nn.ModuleList, own: range) -> None:
        super().__init__()
        self.passed = tuple(None if number in own else PassedLayer(layer) for number, layer in enumerate(layers))
        for number in own:
            self.add_module(str(number), layers[number])

    def __len__(self) -> int:
        return len(self.passed)

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])

    def __getitem__(self, index: Any) -> Any:
        sequence = [self._modules.get(str(number), passed) for number, passed in enumerate(self.passed)]
        return sequence[index]
