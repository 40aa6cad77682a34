"""How large the segments of an engine are: text and stack as its steps need them, and the rest for sessions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch

from tmmu.engine.capture.encoder import EncodingShape
from tmmu.engine.capture.step import StepModel, StepShape
from tmmu.engine.geometry import Geometry, StateLengths
from tmmu.engine.limits import EngineLimits
from tmmu.engine.steps.planned_steps import PlannedStep, Shape, plan_step
from tmmu.engine.steps.step_runner import PREFILL_TOKENS, prefill_shape
from tmmu.errors import DeviceMemory
from tmmu.runtime.memory.sizing import SegmentSizes, device_memory
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, round_up

LEFT_FREE: Final = 10
"""Without a budget, one part in so many of the free memory is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedSteps:
    """Segments, the steps that they are sized for, and how many tokens of a prompt a step may read, most first.

    ``stacks``: how many stacks of the size in ``segments`` there is room for, of as many as the limits ask for.
    """

    segments: SegmentSizes
    stacks: int
    steps: Mapping[Shape, PlannedStep]
    buckets: tuple[int, ...]


def largest_steps(subject: StepModel, limits: EngineLimits) -> dict[Shape, PlannedStep]:
    """Of those that decode and those that encode, the steps that need most of the stack: all rows over the longest
    state, and the longest source.
    """
    geometry = subject.geometry
    kv_length, source_length = geometry.kv_length_for(limits.max_tokens), geometry.source_length_for(limits.max_source)
    shapes: list[Shape] = [StepShape(rows=limits.max_batch, tokens=1, kv_length=kv_length, source_length=source_length)]
    if geometry.has_source:
        shapes.append(EncodingShape(source_length=source_length))
    return {shape: plan_step(subject, shape) for shape in shapes}


def sized_steps(
    subject: StepModel,
    limits: EngineLimits,
    largest: Mapping[Shape, PlannedStep],
    device: torch.device,
    *,
    streamed: int | None = None,
) -> SizedSteps:
    """Sizes of text, stack and data, and the longest part of a prompt for which they leave room.

    ``largest``: the steps that decode and encode. The longest part is that whose step leaves room for the longest
    session, or for the heap; where none does, the one that leaves most. It is chosen for one stack, so that steps are
    the same however many there are; others are added as long as that room is left. ``streamed``: bytes of an arena
    beside the segments, where weights stream; then there is no text. ``DEVICE_MEMORY`` where no session would fit, or
    the device has less.
    """
    geometry = subject.geometry
    longest = geometry.arena_bytes(geometry.capacities_for(limits.max_tokens, limits.max_source))
    smallest = geometry.arena_bytes(geometry.capacities_for(1, 1))
    free = max(device_memory(device)[0] - limits.reserve, 0)
    best: tuple[int, _Needed, dict[Shape, PlannedStep]] | None = None
    for shape in _prefill_shapes(geometry, limits):
        steps = {**largest, shape: plan_step(subject, shape)}
        needed = _sum_up(steps, streamed)
        if best is None or needed.stack < best[1].stack:
            best = shape.tokens, needed, steps
        if needed.room(limits, free) >= (longest if limits.heap is None else limits.heap):
            break
    assert best is not None
    tokens, needed, steps = best
    needed = _with_stacks(needed, limits, free, longest if limits.heap is None else limits.heap)
    data = _data_bytes(needed, limits, free, smallest=smallest, longest=longest)
    return SizedSteps(
        segments=SegmentSizes(text=needed.text, stack=needed.stack, data=data // DEFAULT_ALIGNMENT * DEFAULT_ALIGNMENT),
        stacks=needed.stacks,
        steps=steps,
        buckets=tuple(count for count in PREFILL_TOKENS if count <= tokens),
    )


def _prefill_shapes(geometry: Geometry, limits: EngineLimits) -> Iterator[StepShape]:
    """Steps that read parts of prompts at the end of the longest state, most tokens first; the last reads one."""
    ends = StateLengths(geometry.kv_length_for(limits.max_tokens), geometry.source_length_for(limits.max_source))
    room = geometry.capacity_for(limits.max_tokens)
    for tokens in (*(count for count in PREFILL_TOKENS if count <= room), 1):
        yield prefill_shape(geometry, tokens, ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """Bytes that steps need: of the text segment, of weights wherever they lie, and of each stack."""

    text: int
    weights: int
    stack: int
    stacks: int = 1

    @property
    def together(self) -> int:
        """Weights and stacks."""
        return self.weights + self.stacks * self.stack

    def room(self, limits: EngineLimits, free: int) -> int:
        """Bytes that they leave to sessions."""
        left = (free - free // LEFT_FREE if limits.budget is None else limits.budget) - self.together
        return left if limits.heap is None else min(limits.heap, left)


def _sum_up(steps: Mapping[Shape, PlannedStep], streamed: int | None) -> _Needed:
    # Each step has constants of its own beside the weights; they are small, and each is padded.
    padding = DEFAULT_ALIGNMENT * max(len(planned.plan.buffers.id) for planned in steps.values())
    text = round_up(max(planned.summary.memory.text for planned in steps.values()) + padding, DEFAULT_ALIGNMENT)
    return _Needed(
        text=text if streamed is None else DEFAULT_ALIGNMENT,
        weights=text if streamed is None else streamed,
        stack=round_up(max(planned.summary.memory.stack for planned in steps.values()), DEFAULT_ALIGNMENT),
    )


def _with_stacks(needed: _Needed, limits: EngineLimits, free: int, room: int) -> _Needed:
    """As many stacks as leave so much room for sessions, one at least."""
    for stacks in range(limits.stacks, 1, -1):
        several = replace(needed, stacks=stacks)
        if several.room(limits, free) >= room:
            return several
    return needed


def _data_bytes(needed: _Needed, limits: EngineLimits, free: int, *, smallest: int, longest: int) -> int:
    """Bytes for sessions; ``DEVICE_MEMORY`` where they would hold none, or the device has less than all need."""
    room = needed.room(limits, free)
    data = min(limits.max_sessions * longest, max(room, longest)) if limits.budget is None else room
    data = data if limits.heap is None else limits.heap
    available = free if limits.budget is None else min(limits.budget, free)
    together = needed.together
    if data < smallest or together + data > available:
        what, fix = _shortage(needed, limits, _Bytes(smallest=smallest, data=data, available=available, free=free))
        raise DeviceMemory(
            what, fix=fix, text=needed.weights, stack=needed.stacks * needed.stack, data=max(data, 0), free=free
        )
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    """Of the smallest session, of the data segment, of what all segments may take, and free on the device."""

    smallest: int
    data: int
    available: int
    free: int


def _shortage(needed: _Needed, limits: EngineLimits, sizes: _Bytes) -> tuple[str, str]:
    """What is too much for what, and what to do: of a budget above the device, of a heap, or of a session."""
    together, available = needed.together, sizes.available
    steps = f"weights take {needed.weights} bytes, the stack {needed.stack}"
    others = ", or a smaller reserve=" if limits.reserve else ""
    if limits.budget is not None and limits.budget > sizes.free:
        what = f"a budget of {limits.budget} bytes, and the device has {sizes.free} of them"
        return what, f"give a smaller budget={others}"
    if limits.heap is not None and together + sizes.smallest <= available < together + sizes.data:
        what = f"{steps}, the heap {sizes.data}: {together + sizes.data} together, and {available} are there"
        return what, f"give heap={available - together} or less{others}"
    is_smallest = sizes.data < sizes.smallest or limits.heap is not None
    session, size = ("smallest", sizes.smallest) if is_smallest else ("longest", sizes.data)
    available = min(available, together + sizes.data)
    what = f"{steps}, the {session} session {size}: {together + size} together, and {available} are there"
    fix = "give a larger budget= or heap=, a smaller max_tokens= or max_batch=, or stream the weights with ring="
    return what, fix + others
