"""Validates each step once, when a plan is bound; one that does not have the operator's bits runs its fallback.

Two rounds, after which the plan's memory must be cleared. First, for each call signature, the step's code is compiled
on guarded copies of its results and run on random numbers beside the fallback: any bit that differs, any canary that
breaks, any result that moves, any exception rejects the code. Then every step runs once in place, in order, on whatever
is there: code that fails or moves a result is rejected too, copies that turn out to be none are dropped, and what
torch's allocator was asked for is counted by step. What runs for its effect alone is left out: a check would fail on
what happens to be there, and whatever else it does would be done once more than the model does it.

Invariants: the random state is as it was; only tensors that ``may_fill`` allows are overwritten with random numbers;
calls of one signature get one verdict, so a plan of many equal layers is validated once per layer kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tmmu.ir.program import Call
from tmmu.runtime.kernels.code import Code, call_results, run_and_drop_copies, runnable_of
from tmmu.runtime.memory.slab import has_same_bits, is_same_view
from tmmu.runtime.steps.build import CompiledStep, ViewOf, byte_range
from tmmu.runtime.steps.execution_stream import ExecutionStream
from tmmu.runtime.steps.guarded_results import CallSignature, GuardedResults, call_signature
from tmmu.runtime.steps.unplanned import Unplanned
from tmmu.torch_private import DisableAutocast


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationContext:
    """The tensor of each value, a compiler of calls for other tensors, and which arguments may be overwritten."""

    view: ViewOf
    compile_call: Callable[[Call, ViewOf], CompiledStep]
    may_fill: Callable[[torch.Tensor], bool]
    stream: ExecutionStream


def validate_steps(
    steps: Sequence[CompiledStep], context: ValidationContext
) -> tuple[list[CompiledStep], tuple[Unplanned, ...]]:
    """The steps as they will run, and what operators allocate in them. Overwrites activations, state and inputs."""
    with torch.random.fork_rng(devices=context.stream.generators), torch.no_grad(), DisableAutocast():
        verdicts: dict[CallSignature, bool] = {}
        chosen = [step if _is_bit_exact(step, context, verdicts) else _use_fallback(step) for step in steps]
        with context.stream.count_allocations() as counter:
            settled = []
            for index, step in enumerate(chosen):
                with counter.step_scope(index):
                    settled.append(_settle(step))
    return settled, counter.by_operator([step.name for step in settled])


def _is_bit_exact(step: CompiledStep, context: ValidationContext, verdicts: dict[CallSignature, bool]) -> bool:
    """Whether the code has the operator's bits on random numbers, and writes nothing else; once per signature."""
    call = step.call
    if not step.needs_validation or call is None or not step.results:
        return True
    signature = call_signature(call, context.view, step)
    if signature not in verdicts:
        for argument in step.arguments:
            if context.may_fill(argument):
                _randomize(argument)
        verdicts[signature] = _matches_fallback(step, call, context)
    return verdicts[signature]


def _randomize(tensor: torch.Tensor) -> None:
    """Fills a floating or complex tensor with normal numbers, gaps included."""
    # Integral tensors keep their values: they may index another tensor, and random ones may be out of range.
    if tensor.is_floating_point() or tensor.is_complex():
        low, high = byte_range(tensor)
        width = tensor.element_size()
        tensor.as_strided(((high - low) // width,), (1,), low // width).normal_()


def _matches_fallback(step: CompiledStep, call: Call, context: ValidationContext) -> bool:
    try:
        guarded = GuardedResults(call, context.view)
        with torch.random.fork_rng(devices=context.stream.generators):
            expected = call_results(step.fallback[0])
        candidate = context.compile_call(call, guarded.view)
        with torch.random.fork_rng(devices=context.stream.generators):
            runnable_of(candidate.code)()
    except Exception:  # noqa: BLE001 - any exception rejects the code
        return False
    # Other places may compile to other code (a takeover that is none there); then this was no test of the step's.
    if len(candidate.code) != len(step.code) or not guarded.is_intact():
        return False
    rows = zip(expected, candidate.fallback[0].into, strict=True)
    return all(has_same_bits(result, place) for result, place in rows if result is not None and place is not None)


def _settle(step: CompiledStep) -> CompiledStep:
    """The step after one run in place: its code, or its fallback where that fails or moves a result."""
    if step.runs_for_effect:
        return step
    views = [result.detach() for result in step.results]
    if step.code is not step.fallback:
        code = _run_once(step.code)
        if code is not None and all(map(is_same_view, step.results, views)):
            return replace(step, code=code, is_settled=True)
        for result, before in zip(step.results, views, strict=True):
            result.set_(before)  # type: ignore[call-overload]
    code = _run_once(step.fallback)  # may fail on zeros where it accepts real inputs; then it is never captured
    return _use_fallback(step) if code is None else replace(step, code=code, fallback=code, is_settled=True)


def _use_fallback(step: CompiledStep) -> CompiledStep:
    return replace(step, code=step.fallback)


def _run_once(code: Code) -> Code | None:
    """The code without the copies that its run showed to be none; ``None`` where it fails."""
    try:
        return tuple(map(run_and_drop_copies, code))
    except Exception:  # noqa: BLE001 - any exception rejects the code
        return None
