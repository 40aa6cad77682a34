"""How large the segments of an engine are: text and stack as its steps need them, and the rest for sessions."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tmmu.engine.capture.encoder import EncodingShape
from tmmu.engine.capture.step import StepModel, StepShape
from tmmu.engine.geometry import StateLengths
from tmmu.engine.step_runner import PREFILL_TOKENS, prefill_shape
from tmmu.engine.steps_by_shape import PlannedStep, Shape, plan_step
from tmmu.errors import DeviceMemory
from tmmu.runtime.memory.sizing import SegmentSizes, device_memory
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What an engine is for. ``budget``: bytes of all segments; ``None``: room for ``max_sessions`` of the longest.

    ``heap``: bytes of the data segment, in place of what is left. ``ring``: bytes through which weights stream.
    ``max_source``: positions of the longest source; 0 of a model without an encoder.
    """

    max_tokens: int
    max_source: int
    max_batch: int
    max_sessions: int
    budget: int | None
    heap: int | None = None
    ring: int | None = None


def largest_steps(subject: StepModel, limits: EngineLimits) -> dict[Shape, PlannedStep]:
    """The steps that need most of the stack: all rows over the longest state, the longest part of a prompt, and the
    longest source.
    """
    geometry = subject.geometry
    kv_length, source_length = geometry.kv_length_for(limits.max_tokens), geometry.source_length_for(limits.max_source)
    room = geometry.capacity_for(limits.max_tokens)
    tokens = next((count for count in PREFILL_TOKENS if count <= room), 1)
    shapes: list[Shape] = [
        StepShape(rows=limits.max_batch, tokens=1, kv_length=kv_length, source_length=source_length),
        prefill_shape(geometry, tokens, StateLengths(kv_length, source_length)),
    ]
    if geometry.has_source:
        shapes.append(EncodingShape(source_length=source_length))
    return {shape: plan_step(subject, shape) for shape in shapes}


def engine_sizes(
    subject: StepModel,
    limits: EngineLimits,
    largest: Mapping[Shape, PlannedStep],
    device: torch.device,
    *,
    streamed: int | None = None,
) -> SegmentSizes:
    """Bytes of text, stack and data; ``DEVICE_MEMORY`` where no session would fit, or the device has less.

    ``streamed``: bytes of an arena beside them, where weights stream; then there is no text.
    """
    geometry = subject.geometry
    longest = geometry.arena_bytes(geometry.capacities_for(limits.max_tokens, limits.max_source))
    smallest = geometry.arena_bytes(geometry.capacities_for(1, 1))
    # Each step has constants of its own beside the weights; they are small, and each is padded.
    padding = DEFAULT_ALIGNMENT * max(len(planned.plan.buffers.id) for planned in largest.values())
    text = round_up(max(planned.text_bytes for planned in largest.values()) + padding, DEFAULT_ALIGNMENT)
    weights = text if streamed is None else streamed
    stack = round_up(max(planned.stack_bytes for planned in largest.values()), DEFAULT_ALIGNMENT)
    free, _ = device_memory(device)
    rest = free if limits.budget is None else min(limits.budget, free)
    if limits.heap is not None:
        data = limits.heap
    elif limits.budget is None:
        data = min(limits.max_sessions * longest, max(rest - weights - stack, longest))
    else:
        data = limits.budget - weights - stack
    if data < smallest or weights + stack + data > rest:
        there = min(rest, weights + stack + data)
        raise DeviceMemory(
            f"weights take {weights} bytes, the stack {stack}, the smallest session {smallest}: "
            f"{weights + stack + smallest} together, and {there} are there",
            fix="give a larger budget= or heap=, a smaller max_tokens= or max_batch=, or stream the weights with ring=",
            text=weights,
            stack=stack,
            data=max(data, 0),
            free=free,
        )
    return SegmentSizes(
        text=text if streamed is None else DEFAULT_ALIGNMENT,
        stack=stack,
        data=data // DEFAULT_ALIGNMENT * DEFAULT_ALIGNMENT,
    )
