"""The report of ``tmmu fit --max``: the largest size as the step is, and with levers; how that is known."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tmmu.cli.output.render import size
from tmmu.codec.printable import align_columns
from tmmu.device_fit import DeviceSizes
from tmmu.ir.plan import segment_bytes
from tmmu.planner.fit.fit_graph import op_text
from tmmu.planner.fit.fit_step import PPM
from tmmu.planner.sizes.largest import MOST
from tmmu.planner.sizes.max_size import LargestSize, MaxSizes, SizeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxReport:
    """What was found; ``size_option``, ``other_options``: the command that makes a plan, before and after its size."""

    answer: DeviceSizes
    request: SizeRequest
    axis: str
    budget: int | None
    reserve: int
    size_option: str
    other_options: str

    @property
    def found(self) -> MaxSizes:
        """The sizes themselves."""
        return self.answer.found


def lines(report: MaxReport) -> Iterator[str]:
    """The report as text."""
    found, request = report.found, report.request
    some = found.fitted or found.as_it_is
    if some is None:
        return
    graph, what = some.graph, "the stack" if report.budget is None else "all of it"
    limit = request.limit if report.budget is None else report.budget
    kept = "" if report.budget is None else f", with {size(report.reserve)} kept free"
    name = f"{graph.notes.name}: {some.plan.mode} on {graph.target}"
    yield f"{name}: the largest {report.axis} with {what} in {size(limit)}{kept}"
    yield ""
    rows = [_row("as it is", report.axis, found.as_it_is)]
    if request.levers is not None:
        rows.append(_row(f"with {', '.join(request.levers)}", report.axis, found.fitted))
    yield from align_columns("<>>>", ("form", report.axis, "takes", "extra time"), rows)
    yield ""
    yield from dict.fromkeys(_known_by(form) for form in (found.as_it_is, found.fitted) if form is not None)
    yield from _parts_lines(report.answer, graph.target)
    traced = ", ".join(map(str, found.traces))
    yield f"{len(found.traces)} traces, at {report.axis} {traced}; the plan of an answer is that of its trace, judged"
    yield f"its plan: {report.size_option}{some.size} {report.other_options}"


def _parts_lines(answer: DeviceSizes, device: str) -> Iterator[str]:
    """What became of parts, where something did."""
    base = answer.graph
    if base is not None:
        ops = ", ".join(dict.fromkeys(op_text(base, op) for op in answer.left_out))
        yield f"nothing runs in parts: those of {ops} have other bits than the whole on this {device}"
    elif not answer.is_tried:
        yield f"parts are tried on the {device} that runs them: where they have other bits there, the run is refused"


def _row(name: str, axis: str, form: LargestSize | None) -> tuple[str, ...]:
    if form is None:
        return (name, "none", f"more at {axis} 1", "")
    time = (
        "" if form.fitted is None else "0" if abs(form.extra_time) < 500 else f"~{form.extra_time * 100 / PPM:+.1f} %"
    )
    return (name, str(form.size), size(form.needed), time)


def _known_by(form: LargestSize) -> str:
    if form.size >= MOST:
        return f"nothing grows with it: sizes end at {MOST}"
    if form.is_predicted and form.unit > 1:
        return f"among multiples of {form.unit}: between them kernels pad; traces are what was predicted, byte for byte"
    if form.is_predicted:
        return "the trace is what was predicted, byte for byte"
    if form.refusal:
        return f"searched in traces: the model takes no more: {form.refusal}"
    return "searched in traces: no polynomials go through them"


def record(report: MaxReport) -> dict[str, Any]:
    """The report as one JSON object; bytes, and shares in parts per million."""
    found, some = report.found, report.found.fitted or report.found.as_it_is
    return {
        "model": some.graph.notes.name if some else "",
        "mode": some.plan.mode if some else "",
        "device": some.graph.target if some else "",
        "budget_bytes": report.budget,
        "reserve_bytes": report.reserve,
        "limit_bytes": report.request.limit,
        "max": {
            "axis": report.axis,
            "as_it_is": _size_record(found.as_it_is),
            "fitted": _size_record(found.fitted),
            "traces": list(found.traces),
            "parts_tried": report.answer.is_tried,
            "parts_left_out": _left_out(report.answer),
        },
    }


def _left_out(answer: DeviceSizes) -> list[dict[str, str]]:
    if answer.graph is None:
        return []
    ops, notes = answer.graph.ops, answer.graph.notes.ops
    return [{"op": ops.target[op], "source": notes.source[op]} for op in answer.left_out]


def _size_record(form: LargestSize | None) -> dict[str, Any] | None:
    if form is None:
        return None
    plan = form.plan if form.fitted is None else form.fitted.plan
    return {
        "size": form.size,
        "needed_bytes": form.needed,
        "stack_bytes": segment_bytes(plan.arenas, "stack"),
        "extra_time_ppm": form.extra_time,
        "unit": form.unit,
        "predicted": form.is_predicted,
        "refusal": form.refusal,
        "digest": plan.digest.hex(),
    }
