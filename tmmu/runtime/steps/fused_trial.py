"""The trial of a fused kernel: on draws of numbers it is held against its members, one by one, by a stated tolerance.

Its results lie between canaries, what it changes is a copy. A float is *near* another where they differ by at most a
share of the largest magnitude in the tensor or, up to 1, in what the op reads, which depends on the dtype; NaN and
infinities stand in the same places; whole numbers and bools are equal.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import torch

from tmmu.ir.program import Call, ValueRef
from tmmu.runtime.kernels.code import call_results, runnable_of
from tmmu.runtime.memory.slab import Slab, byte_range
from tmmu.runtime.steps.build import CompiledStep, ViewOf
from tmmu.runtime.steps.guarded_results import GUARD_BYTES, GuardedResults, stand_ins
from tmmu.runtime.steps.trial_values import NORMAL, clear_arguments, elements_of, fill_arguments

TOLERANCE: Final[Mapping[torch.dtype, float]] = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2.0**-8,
    torch.bfloat16: 2.0**-6,
}
"""Share of the largest magnitude in a tensor by which a fused kernel may differ from its members."""
INTEGERS: Final = ("up", "down", "zeros")
"""What whole numbers are in each draw; the last only where no other draw was taken."""
INTEGERS_OF_GPU: Final = ("zeros", "zeros")
"""The same where a place out of range is no exception, but ends all work on the device. Equal places that are written
differ by chance: such a kernel runs its members."""


def is_near_on_draws(
    call: Call,
    view: ViewOf,
    may_fill: Callable[[torch.Tensor], bool],
    compile_call: Callable[[Call, ViewOf], CompiledStep],
) -> bool:
    """Whether the kernel of a fused call is near its members on every draw that these take; false where on none."""
    changed = [ref.value for ref in call.args[1] if isinstance(ref, ValueRef)]
    copies = {value: _copy(view(value)) for value in dict.fromkeys(changed)}
    filled = stand_ins(call, view, may_fill)
    guarded = (
        GuardedResults(call, lambda value: copies[value] if value in copies else filled(value))
        if any(value is not None for value in call.results)
        else None
    )
    view_of = (
        guarded.view if guarded is not None else (lambda value: copies[value] if value in copies else filled(value))
    )
    step = compile_call(call, view_of)
    if step.code is step.fallback:
        return False
    changed_tensors = [view_of(value) for value in copies]
    fillable = [t for t in step.arguments if may_fill(t) or any(t is copy for copy in changed_tensors)]
    try:
        agrees = _agree_on_draws(step, fillable, changed_tensors)
    finally:
        clear_arguments(fillable)
    return agrees and (guarded is None or guarded.is_intact())


def read_scale(reads: Iterable[torch.Tensor]) -> float:
    """The largest finite magnitude of what an op reads, up to 1: a sum of such numbers may be nothing but rounding."""
    numbers = [tensor[tensor.isfinite()].abs() for tensor in reads if tensor.is_floating_point()]
    return min(1.0, max((float(each.max()) for each in numbers if each.numel()), default=0.0))


def differs_by(result: torch.Tensor, expected: torch.Tensor, scale: float = 0.0) -> float:
    """By which share of the largest magnitude two tensors differ, which is ``scale`` at least.

    Infinity where they differ in kind.
    """
    if not expected.is_floating_point():
        return 0.0 if torch.equal(result, expected) else float("inf")
    finite = expected.isfinite()
    same = torch.equal(result.isfinite(), finite) and torch.equal(result.isnan(), expected.isnan())
    if not same or not torch.equal(result[~finite].nan_to_num(), expected[~finite].nan_to_num()):
        return float("inf")
    a, b = result[finite].double(), expected[finite].double()
    largest = max(float(b.abs().max()) if b.numel() else 0.0, scale)
    difference = float((a - b).abs().max()) if b.numel() else 0.0
    return difference / largest if largest else (0.0 if difference == 0.0 else float("inf"))


def is_near(result: torch.Tensor, expected: torch.Tensor, scale: float = 0.0) -> bool:
    """Whether a result is within the tolerance of its dtype."""
    return differs_by(result, expected, scale) <= TOLERANCE.get(expected.dtype, 0.0)


def _agree_on_draws(step: CompiledStep, fillable: Sequence[torch.Tensor], changed: Sequence[torch.Tensor]) -> bool:
    """Whether kernel and members agree on each draw that these take, of which there is one."""
    tried, draws = 0, integers_of(step.arguments)
    for draw, integers in enumerate(draws):
        if draws is INTEGERS and integers == "zeros" and tried:
            break  # equal places, of which the last written counts, and kernels have no order among them
        agrees = _agrees(step, fillable, changed, draw, integers)
        if agrees is False:
            return False
        tried += agrees is not None
    return tried > 0


def integers_of(arguments: Iterable[torch.Tensor]) -> tuple[str, ...]:
    """What whole numbers are in each draw for a kernel of such arguments."""
    return INTEGERS if all(tensor.device.type == "cpu" for tensor in arguments) else INTEGERS_OF_GPU


def _fill_integers(tensors: Sequence[torch.Tensor], how: str) -> None:
    """Whole numbers that may be places in another tensor, each once, up or down; or zeros, which always are."""
    for tensor in tensors:
        flat = elements_of(tensor)
        places = torch.arange(flat.numel(), device=flat.device)
        if tensor.dtype == torch.bool:
            flat.copy_(places % 2 == (how == "up"))
        elif not tensor.is_floating_point():
            flat.copy_(places if how == "up" else places.flip(0) if how == "down" else torch.zeros_like(places))


def _agrees(
    step: CompiledStep, fillable: Sequence[torch.Tensor], changed: Sequence[torch.Tensor], draw: int, integers: str
) -> bool | None:
    """Whether kernel and members agree on a draw; ``None`` where the members do not take it."""
    fill_arguments(fillable, NORMAL, draw, integers=False)
    _fill_integers(fillable, integers)
    before = [tensor.clone() for tensor in changed]
    try:
        expected = call_results(step.fallback[0])
    except Exception:  # noqa: BLE001 - a draw may hold what an operator refuses
        return None
    after = [tensor.clone() for tensor in changed]
    for tensor, saved in zip(changed, before, strict=True):
        tensor.copy_(saved)
    runnable_of(step.code)()
    rows = zip(expected, step.fallback[0].into, strict=True)
    pairs = [(place, result) for result, place in rows if place is not None]
    scale = read_scale(step.arguments)
    return all(is_near(a, b, scale) for a, b in (*pairs, *zip(changed, after, strict=True)))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout with the same elements, in memory of its own."""
    low, high = byte_range(tensor)
    slab = Slab(high - low, GUARD_BYTES, tensor.device)
    copy = slab.view(0, tensor.shape, tensor.stride(), tensor.dtype)
    return copy.copy_(tensor)
