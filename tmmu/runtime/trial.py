"""Each step tried once when a plan is bound: what fails, moves a result or changes a bit is copied from then on."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from tmmu.runtime.code import Code, run_settling, runner
from tmmu.runtime.lane import Lane
from tmmu.runtime.slab import same_place
from tmmu.runtime.steps import Step
from tmmu.runtime.unplanned import Unplanned

Fill = Callable[[torch.Tensor], bool]
"""Whether a tensor's memory may be filled with anything."""


def tried(steps: Sequence[Step], may_fill: Fill, lane: Lane) -> tuple[list[Step], tuple[Unplanned, ...]]:
    """The steps as they will run, settled on whatever lies in memory now, and what operators allocate in them."""
    with torch.random.fork_rng(devices=lane.generators), torch.no_grad(), torch._C._DisableAutocast():
        chosen = [_with_same_bits(step, may_fill) if step.on_trial else step for step in steps]
        with lane.counting() as seen:
            kept = []
            for index, step in enumerate(chosen):
                with seen.of_step(index):
                    kept.append(_in_place(step))
    return kept, seen.by_operator([step.name for step in kept])


def _with_same_bits(step: Step, may_fill: Fill) -> Step:
    """By parts only if they give, of random numbers, what the whole operator gives."""
    for argument in step.arguments:
        if argument.is_floating_point() and may_fill(argument):
            argument.normal_()
    try:
        runner(step.copying)()
        whole = [result.clone() for result in step.results]
        runner(step.code)()
    except Exception:  # noqa: BLE001 - any refusal means the same
        return _copied(step)
    same = all(_equal(one, result) for one, result in zip(whole, step.results, strict=True))
    return step if same else _copied(step)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
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
