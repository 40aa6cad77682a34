"""Each step tried once when a plan is bound: what fails, moves a result or changes a bit is copied from then on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tmmu.ir.program import Call
from tmmu.runtime.kernels.code import Code, call_results, run_and_drop_copies, runnable_of
from tmmu.runtime.memory.slab import is_same_view
from tmmu.runtime.steps.build import CompiledStep, ViewOf, byte_range
from tmmu.runtime.steps.execution_stream import ExecutionStream
from tmmu.runtime.steps.guarded_results import CallSignature, GuardedResults, call_signature
from tmmu.runtime.steps.unplanned import Unplanned


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationContext:
    """What trials need: the places of values, who compiles a call for other places, and what may be filled."""

    view: ViewOf
    compile_call: Callable[[Call, ViewOf], CompiledStep]
    may_fill: Callable[[torch.Tensor], bool]
    stream: ExecutionStream


def validate_steps(
    steps: Sequence[CompiledStep], context: ValidationContext
) -> tuple[list[CompiledStep], tuple[Unplanned, ...]]:
    """The steps as they will run, settled on whatever lies in memory now, and what operators allocate in them."""
    with torch.random.fork_rng(devices=context.stream.generators), torch.no_grad(), torch._C._DisableAutocast():
        verdicts: dict[CallSignature, bool] = {}
        chosen = [step if _is_bit_exact(step, context, verdicts) else _use_fallback(step) for step in steps]
        with context.stream.count_allocations() as counter:
            settled = []
            for index, step in enumerate(chosen):
                with counter.step_scope(index):
                    settled.append(_settle(step))
    return settled, counter.by_operator([step.name for step in settled])


def _is_bit_exact(step: CompiledStep, context: ValidationContext, verdicts: dict[CallSignature, bool]) -> bool:
    """Whether it gives, of random numbers, what the operator gives, and no more. Calls of one form are tried once."""
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
    """Normal numbers, each element of the memory once; whole numbers may index something, and stay."""
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
    except Exception:  # noqa: BLE001 - any refusal means the same
        return False
    destinations = candidate.fallback[0].into  # without what nobody reads
    same = (
        _has_same_bits(result, place)
        for result, place in zip(expected, destinations, strict=True)
        if result is not None and place is not None
    )
    return len(candidate.code) == len(step.code) and guarded.is_intact() and all(same)


def _has_same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def _settle(step: CompiledStep) -> CompiledStep:
    views = [result.detach() for result in step.results]
    if step.code is not step.fallback:
        code = _run_once(step.code)
        if code is not None and all(map(is_same_view, step.results, views)):
            return replace(step, code=code, is_settled=True)
        for result, before in zip(step.results, views, strict=True):
            result.set_(before)  # type: ignore[call-overload]
    code = _run_once(step.fallback)
    return _use_fallback(step) if code is None else replace(step, code=code, fallback=code, is_settled=True)


def _use_fallback(step: CompiledStep) -> CompiledStep:
    return replace(step, code=step.fallback)


def _run_once(code: Code) -> Code | None:
    """What is left to copy, found by running it; ``None`` where it fails: zeros may be refused, real inputs not."""
    try:
        return tuple(map(run_and_drop_copies, code))
    except Exception:  # noqa: BLE001 - any refusal means the same
        return None
