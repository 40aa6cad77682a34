"""The steps of a checkpoint: the largest planned, segments made for them, none bound yet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

import torch

from tmmu.engine.capture.step import StepModel
from tmmu.engine.checkpoint import Checkpoint, weight_keys
from tmmu.engine.limits import EngineLimits
from tmmu.engine.steps.planned_steps import PlannedStep, PlannedSteps, Shape
from tmmu.engine.steps.sizes import largest_steps, sized_steps
from tmmu.engine.steps.steps_by_shape import StepsByShape
from tmmu.engine.steps.weight_stream import WeightStream
from tmmu.errors import UnsupportedOp
from tmmu.runtime.memory.segments import Segments


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSteps:
    """``stream``: what moves the weights past the steps, if they stream. ``buckets``: of ``SizedSteps``.

    ``by_stack``: the steps of each stack, of one model; ``segments``: those of the first.
    """

    planned: PlannedSteps
    by_stack: tuple[StepsByShape, ...]
    segments: Segments
    stream: WeightStream | None
    buckets: tuple[int, ...]


def build_steps(
    subject: StepModel,
    limits: EngineLimits,
    checkpoint: Checkpoint,
    device: torch.device,
    clock: Callable[[], float] = monotonic,
) -> BuiltSteps:
    """Steps and segments of an engine; ``DEVICE_MEMORY`` and ``ARENA_TOO_SMALL`` where they do not fit."""
    largest = largest_steps(subject, limits)
    stream = None if limits.ring is None else _stream_of(subject, largest, limits.ring, device)
    sized = sized_steps(subject, limits, largest, device, streamed=None if stream is None else stream.ring.bytes)
    segments = Segments(sized.segments, device)
    keys = weight_keys(checkpoint) if stream is None else {}
    planned_steps = PlannedSteps(subject, sized.stacks)
    for shape, planned in sized.steps.items():
        planned_steps.keep(shape, planned)
    by_stack = tuple(
        StepsByShape(planned_steps, each, checkpoint.weights, keys, stream=stream, clock=clock)
        for each in (segments, *(segments.beside() for _ in range(sized.stacks - 1)))
    )
    return BuiltSteps(planned=planned_steps, by_stack=by_stack, segments=segments, stream=stream, buckets=sized.buckets)


def _stream_of(
    subject: StepModel, largest: Mapping[Shape, PlannedStep], capacity: int, device: torch.device
) -> WeightStream:
    """The ring of the step that decodes most, which the others follow."""
    if subject.geometry.has_source:
        raise UnsupportedOp(
            "an encoder and its decoder read other weights, and one ring streams those of one pass",
            fix="run a model with an encoder without ring=",
        )
    planned = next(iter(largest.values()))
    return WeightStream(planned.program.graph, planned.plan, capacity=capacity, device=device)
