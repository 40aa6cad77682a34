"""Validates each step once, when a plan is bound; one that does not have the operator's bits runs its fallback.

Two rounds, after which the plan's memory must be cleared. First, for each call signature, the step's code is compiled
on guarded copies of its results and run beside the fallback on several draws of ``trial_values``: any bit that differs,
any canary that breaks, any result that moves, any exception of the code alone rejects it. Then every step runs once in
place, in order, on whatever is there: code that fails or moves a result is rejected too, copies that turn out to be
none are dropped, and what torch's allocator was asked for is counted by step. What runs for its effect alone is left
out: a check would fail on what happens to be there, and whatever else it does would be done once more than the model
does it. So is a call of all ranks together, which one rank alone cannot make.

Invariants: the caller's random state is as it was, and decides nothing: draws have seeds of their own, and so have the
operators that draw. Only tensors that ``may_fill`` allows are overwritten. A verdict is a function of the signature
(and, for arguments that may not be filled and are large, of their values): the same in every process. Calls of one
signature get one verdict, so a plan of many equal layers is validated once per layer kind.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from tmmu.errors import UnsupportedOp
from tmmu.ir.graph import FUSED_NAMESPACE
from tmmu.ir.program import Call
from tmmu.runtime.kernels.code import Code, Instruction, call_results, run_and_drop_copies, runnable_of
from tmmu.runtime.kernels.lowerings import is_lowered
from tmmu.runtime.memory.slab import has_same_bits, is_same_view
from tmmu.runtime.steps.build import CompiledStep, ViewOf
from tmmu.runtime.steps.execution_stream import ExecutionStream
from tmmu.runtime.steps.fused_trial import is_near_on_draws
from tmmu.runtime.steps.guarded_results import CallSignature, GuardedResults, call_signature, stand_ins
from tmmu.runtime.steps.trial_values import SEED, clear_arguments, draws_of, fill_arguments
from tmmu.runtime.steps.unplanned import Unplanned
from tmmu.torch_private import DisableAutocast

_LOG: Final = logging.getLogger("tmmu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationContext:
    """The tensor of each value, a compiler of calls for other tensors, and which arguments may be overwritten."""

    view: ViewOf
    compile_call: Callable[[Call, ViewOf], CompiledStep]
    may_fill: Callable[[torch.Tensor], bool]
    stream: ExecutionStream
    exact_strides: bool = False
    """Whether a result that torch lays out otherwise than the plan is refused, or copied into its place and logged."""


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
                    settled.append(_settle(step, context))
    return settled, counter.by_operator([step.name for step in settled])


def _is_bit_exact(step: CompiledStep, context: ValidationContext, verdicts: dict[CallSignature, bool]) -> bool:
    """Whether the code has the operator's bits on random numbers, and writes nothing else; once per signature."""
    call = step.call
    if not step.needs_validation or call is None or (not step.results and not step.arguments):
        return True
    signature = call_signature(call, context.view, step)
    if signature not in verdicts:
        try:
            is_fused = call.operator.namespace == FUSED_NAMESPACE
            verdicts[signature] = (_is_near if is_fused else _matches_fallback)(step, call, context)
        except Exception:  # noqa: BLE001 - any exception rejects the code
            verdicts[signature] = False
    return verdicts[signature]


def _is_near(step: CompiledStep, call: Call, context: ValidationContext) -> bool:
    """Whether a fused kernel is near its members, and writes nothing else."""
    del step  # it is compiled again, for other tensors
    return is_near_on_draws(call, context.view, context.may_fill, context.compile_call)


def _matches_fallback(step: CompiledStep, call: Call, context: ValidationContext) -> bool:
    """Whether every draw on which the operator runs gives the same bits; false where it runs on none."""
    guarded = GuardedResults(call, stand_ins(call, context.view, context.may_fill))
    candidate = context.compile_call(call, guarded.view)
    # Other places may compile to other code (a takeover that is none there); then this is no test of the step's.
    if len(candidate.code) != len(step.code):
        return False
    fillable = [argument for argument in candidate.arguments if context.may_fill(argument)]
    try:
        return _agrees_on_draws(candidate, context, fillable) and guarded.is_intact()
    finally:
        clear_arguments(fillable)


def _agrees_on_draws(candidate: CompiledStep, context: ValidationContext, fillable: Sequence[torch.Tensor]) -> bool:
    assert candidate.call is not None  # it was compiled from one
    is_pointwise = torch.Tag.pointwise in candidate.call.operator.tags
    elements = max(tensor.numel() for tensor in (*candidate.arguments, *candidate.results))
    special = is_pointwise or is_lowered(candidate.call.operator)
    run, is_tried = runnable_of(candidate.code), False
    for draw, kind in enumerate(draws_of(candidate.call.operator, elements, special=special)):
        fill_arguments(fillable, kind, draw, integers=is_pointwise)
        expected = _attempt(candidate.fallback[0], context.stream)
        if expected is None:
            continue
        is_tried = True
        if _misfits(expected, candidate.fallback[0].into):
            return False
        _seed_generators(context.stream)
        run()
        rows = zip(expected, candidate.fallback[0].into, strict=True)
        if not all(_is_same(result, place) for result, place in rows if result is not None and place is not None):
            return False
    return is_tried


def _is_same(result: torch.Tensor, place: torch.Tensor) -> bool:
    """Whether all bits are the same, but for those of a NaN: its sign differs between torch's own loops for one sum."""
    if has_same_bits(result, place):
        return True
    if not result.is_floating_point():
        return False
    is_nan = result.isnan()
    return is_nan.equal(place.isnan()) and has_same_bits(result.masked_fill(is_nan, 0), place.masked_fill(is_nan, 0))


def _attempt(instr: Instruction, stream: ExecutionStream) -> list[Any] | None:
    """What the operator returns; ``None`` where it does not take these values."""
    _seed_generators(stream)
    try:
        return call_results(instr)
    except Exception:  # noqa: BLE001 - a draw may hold what the operator refuses
        return None


def _seed_generators(stream: ExecutionStream) -> None:
    """The same numbers for every operator that draws, whatever the caller's state is; that is restored at the end."""
    torch.default_generator.manual_seed(SEED)
    for device in stream.generators:
        torch.cuda.default_generators[device].manual_seed(SEED)


def _settle(step: CompiledStep, context: ValidationContext) -> CompiledStep:
    """The step after one run in place: its code, or its fallback where that fails or moves a result."""
    if step.runs_for_effect or step.is_between_ranks:
        return step
    views = [result.detach() for result in step.results]
    if step.code is not step.fallback:
        code = _run_once(step.code)
        if code is not None and all(map(is_same_view, step.results, views)):
            return replace(step, code=code, is_settled=True)
        for result, before in zip(step.results, views, strict=True):
            result.set_(before)  # type: ignore[call-overload]
    check = partial(_check_results, step, exact_strides=context.exact_strides)
    code = _run_once(step.fallback, check)  # may fail on zeros where it accepts real inputs; then it is never captured
    return _use_fallback(step) if code is None else replace(step, code=code, fallback=code, is_settled=True)


def _use_fallback(step: CompiledStep) -> CompiledStep:
    return replace(step, code=step.fallback)


def _check_results(step: CompiledStep, returned: Sequence[Any], *, exact_strides: bool) -> None:
    """Refuse results of another size or dtype than the fake kernel's, for which the plan has no place; log strides.

    Not where values decide the shape: it is another one on the zeros that are there.
    """
    if step.depends_on_values:
        return
    for result, place in _misfits(returned, step.fallback[0].into):
        fault = f"{step.name}: torch's kernel makes {_form(result)}, where its fake kernel says {_form(place)}"
        fits = result.shape == place.shape and result.dtype == place.dtype and result.layout == place.layout
        if exact_strides or not fits:
            raise UnsupportedOp(fault, fix="run it without a plan, and report the operator", operator=step.name)
        _LOG.warning("%s; the result is copied", fault)


def _misfits(returned: Sequence[Any], places: Sequence[torch.Tensor | None]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(result, place) of each result that is read and is not of its place's size, strides, dtype and layout."""
    rows = zip(returned, places, strict=False)
    return [(a, b) for a, b in rows if isinstance(a, torch.Tensor) and b is not None and not _has_form(a, b)]


def _form(tensor: torch.Tensor) -> str:
    strides = f" of strides {tuple(tensor.stride())}" if tensor.layout is torch.strided else f" of {tensor.layout}"
    return f"{str(tensor.dtype)[6:]}{list(tensor.shape)}{strides}"


def _has_form(result: torch.Tensor, place: torch.Tensor) -> bool:
    if (result.shape, result.dtype, result.layout) != (place.shape, place.dtype, place.layout):
        return False
    axes = zip(place.shape, result.stride(), place.stride(), strict=True)
    return place.numel() == 0 or all(a == b for n, a, b in axes if n != 1)


def _run_once(code: Code, check: Callable[[list[Any]], None] | None = None) -> Code | None:
    """The code without the copies that its run showed to be none; ``None`` where it fails."""
    try:
        return tuple(run_and_drop_copies(instr, check) for instr in code)
    except UnsupportedOp:
        raise
    except Exception:  # noqa: BLE001 - any exception rejects the code
        return None
