"""The report of ``tmmu run`` as text and JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from tmmu.cli.output import render
from tmmu.codec.printable import align_columns
from tmmu.driver import Compiled
from tmmu.model_run import RunRequest
from tmmu.planner.arenas import readable_size
from tmmu.summary.plan_contents import loss_text
from tmmu.summary.plan_summary import fit_line

if TYPE_CHECKING:
    from tmmu.runtime.compare.bench import Measurement
    from tmmu.runtime.compare.run import RunReport

MAX_LISTED: Final = 8
"""Operators, inputs or outputs that are listed."""


def record(compiled: Compiled, ran: "RunReport") -> dict[str, Any]:
    """The report as one JSON object."""
    fit = fit_line(compiled.plan)
    return {
        "name": compiled.graph.notes.name,
        "device": compiled.graph.target,
        "mode": compiled.plan.mode,
        "preset": compiled.plan.preset,
        "plan": compiled.plan.digest.hex(),
        **asdict(ran),
        "cache": render.cache_record(compiled.cached),
        "seconds": dict(compiled.seconds),
        "assumed": compiled.assumed,
        "survivors": [{"bytes": count, "source": source} for count, source in compiled.survivors],
        "scaled_updates": compiled.scaled_updates,
        "allocation_time_ns": compiled.allocation_time_ns,
        "loss": loss_text(compiled.graph) or None,
        "switches": [*map(dict, compiled.switches)],
        "fit": fit and asdict(fit),
    }


def lines(compiled: Compiled, ran: "RunReport", request: RunRequest, *, model_file: str) -> Iterator[str]:
    """The report as text."""
    weights = _weights_text(ran.weights, request, model_file)
    yield f"{compiled.graph.notes.name} ran on {compiled.graph.target}: {ran.steps} ops, {weights}"
    yield f"inputs   {_listed(ran.inputs)}"
    yield f"outputs  {_listed(ran.outputs)}"
    yield from render.loss_line(loss_text(compiled.graph))
    yield from render.assumed_line(compiled.assumed)
    yield from render.survivors_line(compiled.survivors)
    yield from render.scaler_line(compiled.scaled_updates)
    yield from render.switches_line(compiled.switches)
    yield from render.rewrite_line(fit_line(compiled.plan))
    yield ""
    rows = [(name, readable_size(size)) for name, size in ran.peak_bytes.items()]
    yield from align_columns("<>", ("segment", "peak"), [*rows, ("inputs", readable_size(ran.input_bytes))])
    yield ""
    table = [
        (u.operator, str(u.calls), readable_size(u.bytes), readable_size(u.peak)) for u in ran.unplanned[:MAX_LISTED]
    ]
    if table:
        yield from align_columns("<>>>", ("allocates inside", "calls", "bytes", "at once"), table)
        more = ran.unplanned[MAX_LISTED:]
        if more:
            yield f"and {len(more)} more operators, {readable_size(max(u.peak for u in more))} at once at most"
    else:
        yield "no operator allocates inside"
    yield from _streaming_lines(ran)
    yield from _fusion_lines(ran)
    yield from _check_lines(ran, check=request.check)
    if ran.bench:
        yield ""
        yield from align_columns("<>>>", ("step", "time", "allocations", "peak"), list(map(_bench_row, ran.bench)))


def ranks_lines(records: Sequence[Mapping[str, Any]], *, check: bool) -> Iterator[str]:
    """What the ranks of one model did, from their records: a row each."""
    first = records[0]
    yield f"{first['name'].partition(', rank')[0]} ran as {len(records)} ranks on {first['device']}: a process each"
    yield f"inputs   {_listed(tuple(first['inputs']))}"
    yield f"outputs  {_listed(tuple(first['outputs']))}"
    yield ""
    segments = list(first["peak_bytes"])
    heading = ("rank", "ops", *segments, "inputs", *(("plain", "itself", "near") if check else ()))
    yield from align_columns("<" + ">" * (len(heading) - 1), heading, [_rank_row(row, check=check) for row in records])
    if check:
        yield ""
        yield "checked: so many outputs and states have the bits of a run without a plan, and of the model itself"


def _rank_row(row: Mapping[str, Any], *, check: bool) -> tuple[str, ...]:
    sizes = [readable_size(size) for size in (*row["peak_bytes"].values(), row["input_bytes"])]
    counts = [str(row[key]) for key in ("checked", "same", "near")] if check else []
    return (str(row["rank"]), str(row["steps"]), *sizes, *counts)


def _weights_text(weights: Mapping[str, int], request: RunRequest, model_file: str) -> str:
    """The origin of the weights, with counts if there is more than one."""
    named = {"model": model_file, "seed": f"seed {request.seed}"}
    if request.weights:
        named = {"file": request.weights.name} | named
    counts = [(place, weights[kind]) for kind, place in named.items() if weights.get(kind)]
    if len(counts) > 1:
        return "weights: " + " and ".join(f"{count} of {place}" for place, count in counts)
    return f"weights of {counts[0][0] if counts else named['seed']}"


def _streaming_lines(ran: "RunReport") -> Iterator[str]:
    if ran.ring:
        names = ("host_bytes", "resident_bytes", "pass_bytes")
        host, stay, moves = (readable_size(ran.ring[name]) for name in names)
        yield ""
        yield f"streamed: of {host} of weights on the host {stay} stay on the device, and {moves} move in a pass"


def _fusion_lines(ran: "RunReport") -> Iterator[str]:
    if ran.fused:
        yield ""
        rest = ran.fused - ran.compiled
        yield f"fused: {ran.compiled} of {ran.steps} ops are compiled kernels" + (
            f", {rest} run unfused" if rest else ""
        )
    if ran.unfused:
        yield "" if not ran.fused else f"no kernel: {ran.unfused}"
        if not ran.fused:
            yield f"not fused: {ran.unfused}"


def _check_lines(ran: "RunReport", *, check: bool) -> Iterator[str]:
    if ran.sanitized or check:
        yield ""
    if ran.sanitized:
        yield f"sanitized: {ran.steps} ops, {ran.sanitized} comparisons of a buffer, no fault"
    if check:
        if ran.fused:
            yield f"checked: {ran.checked} outputs and states have the bits of a run op by op, each op near its members"
        else:
            yield f"checked: {ran.checked} outputs and states have the bits of a run without a plan"
        near_text = f", {ran.near} are near: {ran.difference:.1e} of the largest magnitude" if ran.near else ""
        near_text += f", {ran.far} are not: rounding alone decides them, or a kernel is wrong" if ran.far else ""
        itself = "the model itself" if ran.runs == 1 else f"the step itself, over {ran.runs} steps"
        yield f"checked: {ran.same} outputs and states have the bits of {itself}{near_text}"
        if ran.numbers:
            yield f"checked: {ran.numbers} of Python's numbers that the steps changed are those of the step itself"


def _bench_row(measurement: "Measurement") -> tuple[str, ...]:
    if measurement.failed:
        return (measurement.way, "failed", "", measurement.failed)
    return (
        measurement.way,
        f"{measurement.milliseconds:.3f} ms",
        str(measurement.allocations),
        readable_size(measurement.peak_bytes),
    )


def _listed(items: tuple[str, ...]) -> str:
    more = len(items) - MAX_LISTED
    return ", ".join(items[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "") if items else "none"
