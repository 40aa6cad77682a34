"""A step fitted for a device: its parts are tried there before a plan has them, where the device is this machine's.

Importing this needs no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tmmu.driver import Compiled
from tmmu.errors import BudgetTooSmall, DeviceMissing, UnsupportedOp
from tmmu.ir.ids import OpId
from tmmu.ir.program import Program
from tmmu.ir.rewrite import PARTIAL_KINDS, Rewrite
from tmmu.planner.fit.fit_graph import FitRequest, Fitting, fit_graph, op_text
from tmmu.planner.fit.forms import PARTS

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
    rewrite, fit = fitting.fitted.rewrite, fitting.fitted.plan.fit
    if (fit is not None and fit.near) or set(PARTIAL_KINDS).isdisjoint(rewrite.kind):
        return DeviceFitting(fitting=fitting)
    differing = _differing_parts(program, rewrite, device)
    if not differing:
        return DeviceFitting(fitting=fitting, is_tried=differing is not None)
    without = replace(request, levers=tuple(lever for lever in request.levers if lever != PARTS))
    try:
        again = fit_graph(compiled.graph, compiled.plan, without, whole_curve=whole_curve)
    except BudgetTooSmall as error:
        left_out = op_text(compiled.graph, differing[0])
        what = f"{error.what}; without parts, as those of {left_out} have other bits than the whole on {device}"
        raise BudgetTooSmall(what, fix=MORE_ROOM, **error.fields) from None
    return DeviceFitting(fitting=again, left_out=tuple(differing))


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
