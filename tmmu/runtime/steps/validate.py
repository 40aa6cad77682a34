"""Each step tried once when a plan is bound: what fails, moves a result or changes a bit is copied from then on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tmmu.ir.calls import Call
from tmmu.runtime.kernels.code import Code, returned, run_settling, runner
from tmmu.runtime.memory.slab import same_place
from tmmu.runtime.steps.build import Step, View, extent
from tmmu.runtime.steps.execution_stream import Lane
from tmmu.runtime.steps.guarded_results import Apart, Form, form_of
from tmmu.runtime.steps.unplanned import Unplanned


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What trials need: the places of values, who compiles a call for other places, and what may be filled."""

    view: View
    make: Callable[[Call, View], Step]
    may_fill: Callable[[torch.Tensor], bool]
    lane: Lane


def tried(steps: Sequence[Step], bench: Bench) -> tuple[list[Step], tuple[Unplanned, ...]]:
    """The steps as they will run, settled on whatever lies in memory now, and what operators allocate in them."""
    with torch.random.fork_rng(devices=bench.lane.generators), torch.no_grad(), torch._C._DisableAutocast():
        known: dict[Form, bool] = {}
        chosen = [step if _with_same_bits(step, bench, known) else _copied(step) for step in steps]
        with bench.lane.counting() as seen:
            kept = []
            for index, step in enumerate(chosen):
                with seen.of_step(index):
                    kept.append(_in_place(step))
    return kept, seen.by_operator([step.name for step in kept])


def _with_same_bits(step: Step, bench: Bench, known: dict[Form, bool]) -> bool:
    """Whether it gives, of random numbers, what the operator gives, and no more. Calls of one form are tried once."""
    call = step.call
    if not step.on_trial or call is None or not step.results:
        return True
    form = form_of(call, bench.view, step)
    if form not in known:
        for argument in step.arguments:
            if bench.may_fill(argument):
                _draw(argument)
        known[form] = _passes(step, call, bench)
    return known[form]


def _draw(tensor: torch.Tensor) -> None:
    """Normal numbers, each element of the memory once; whole numbers may index something, and stay."""
    if tensor.is_floating_point() or tensor.is_complex():
        low, high = extent(tensor)
        width = tensor.element_size()
        tensor.as_strided(((high - low) // width,), (1,), low // width).normal_()


def _passes(step: Step, call: Call, bench: Bench) -> bool:
    try:
        apart = Apart(call, bench.view)
        with torch.random.fork_rng(devices=bench.lane.generators):
            wanted = returned(step.copying[0])
        again = bench.make(call, apart.view)
        with torch.random.fork_rng(devices=bench.lane.generators):
            runner(again.code)()
    except Exception:  # noqa: BLE001 - any refusal means the same
        return False
    asked = again.copying[0].into  # without what nobody reads
    same = (
        _equal(one, place) for one, place in zip(wanted, asked, strict=True) if one is not None and place is not None
    )
    return len(again.code) == len(step.code) and apart.untouched() and all(same)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def _in_place(step: Step) -> Step:
    places = [result.detach() for result in step.results]
    if step.code is not step.copying:
        code = _settled(step.code)
        if code is not None and all(map(same_place, step.results, places)):
            return replace(step, code=code, settled=True)
        for result, place in zip(step.results, places, strict=True):
            result.set_(place)  # type: ignore[call-overload]
    code = _settled(step.copying)
    return _copied(step) if code is None else replace(step, code=code, copying=code, settled=True)


def _copied(step: Step) -> Step:
    return replace(step, code=step.copying)


def _settled(code: Code) -> Code | None:
    """What is left to copy, found by running it; ``None`` where it fails: zeros may be refused, real inputs not."""
    try:
        return tuple(map(run_settling, code))
    except Exception:  # noqa: BLE001 - any refusal means the same
        return None
