"""Steps fitted for a device: their parts are tried there before a plan has them, where the device is this machine's.

Importing this needs no torch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from tmmu.driver import Compiled
from tmmu.errors import BudgetTooSmall, DeviceMissing, UnsupportedOp
from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId
from tmmu.ir.program import Program
from tmmu.ir.rewrite import PARTIAL_KINDS, Rewrite
from tmmu.planner.fit.fit_graph import FitRequest, Fitting, fit_graph, op_text
from tmmu.planner.fit.fit_step import FittedStep
from tmmu.planner.fit.forms import PARTS
from tmmu.planner.sizes.max_size import MaxSizes, SizeRequest, Trace, max_sizes

MORE_ROOM: Final = "give that much more, a smaller batch or sequence, or --allow near, by which parts need not be equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFitting:
    """``left_out``: ops of the base whose parts have other bits than the whole, so that nothing runs in parts.

    ``is_tried``: False where parts are in the plan that could not be tried: the device is not here, or has too little
    memory free.
    """

    fitting: Fitting
    left_out: tuple[OpId, ...] = ()
    is_tried: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSizes:
    """As ``DeviceFitting``, of the largest sizes.

    ``left_out``: ops of ``graph``, the base at the size whose parts were tried; without any, ``None``.
    """

    found: MaxSizes
    left_out: tuple[OpId, ...] = ()
    graph: Graph | None = None
    is_tried: bool = True


def fit_on_device(
    program: Callable[[], Program],
    compiled: Compiled,
    request: FitRequest,
    device: str,
    *,
    whole_curve: bool = False,
) -> DeviceFitting:
    """The step within the request; without parts where theirs have other bits than the whole on this device.

    ``program``: that of the compiled graph, made where there are parts to try. Errors: those of ``fit_graph``.
    """
    fitting = fit_graph(compiled.graph, compiled.plan, request, whole_curve=whole_curve)
    if not _has_parts_to_try(fitting.fitted):
        return DeviceFitting(fitting=fitting)
    differing = _differing_parts(program, fitting.fitted.rewrite, device)
    if not differing:
        return DeviceFitting(fitting=fitting, is_tried=differing is not None)
    without = replace(request, levers=_without_parts(request.levers))
    with _refused_without_parts(compiled.graph, differing[0]):
        again = fit_graph(compiled.graph, compiled.plan, without, whole_curve=whole_curve)
    return DeviceFitting(fitting=again, left_out=tuple(differing))


def max_on_device(trace: Trace, program: Callable[[Graph], Program], request: SizeRequest) -> DeviceSizes:
    """The largest sizes; without parts where those of the answer have other bits than the whole on the graphs' device.

    ``program``: that of a traced graph, made where there are parts to try. Errors: those of ``max_sizes``.
    """
    trace = cache(trace)
    found = max_sizes(trace, request)
    answer = found.fitted
    if request.levers is None or answer is None or answer.fitted is None or not _has_parts_to_try(answer.fitted):
        return DeviceSizes(found=found)
    differing = _differing_parts(lambda: program(answer.graph), answer.fitted.rewrite, answer.graph.target)
    if not differing:
        return DeviceSizes(found=found, is_tried=differing is not None)
    with _refused_without_parts(answer.graph, differing[0]):
        again = max_sizes(trace, replace(request, levers=_without_parts(request.levers)))
    traces = tuple(dict.fromkeys((*found.traces, *again.traces)))
    return DeviceSizes(found=replace(again, traces=traces), left_out=tuple(differing), graph=answer.graph)


@contextmanager
def _refused_without_parts(graph: Graph, op: OpId) -> Iterator[None]:
    """Block whose refusal says why nothing runs in parts."""
    try:
        yield
    except BudgetTooSmall as error:
        left_out = f"those of {op_text(graph, op)} have other bits than the whole on {graph.target}"
        raise BudgetTooSmall(f"{error.what}; without parts, as {left_out}", fix=MORE_ROOM, **error.fields) from None


def _without_parts(levers: Sequence[str]) -> tuple[str, ...]:
    return tuple(lever for lever in levers if lever != PARTS)


def _has_parts_to_try(fitted: FittedStep) -> bool:
    """Whether there are any, and the plan promises the bits of the whole."""
    fit = fitted.plan.fit
    return not (fit is not None and fit.near) and not set(PARTIAL_KINDS).isdisjoint(fitted.rewrite.kind)


def _differing_parts(program: Callable[[], Program], rewrite: Rewrite, device: str) -> list[OpId] | None:
    """The ops that have a part with other bits on this device; ``None`` where that cannot be tried."""
    from tmmu.runtime.memory.sizing import device_memory, device_of
    from tmmu.runtime.steps.part_trial import differing_parts, trial_bytes

    try:
        base, place = program(), device_of(device)
        free, _ = device_memory(place)
    except (DeviceMissing, UnsupportedOp):
        return None
    return differing_parts(base, rewrite, place) if trial_bytes(base.graph, rewrite) <= free else None
