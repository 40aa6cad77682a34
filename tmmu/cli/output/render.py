"""Text of a ``Summary``: ASCII, the same on a terminal and in a pipe except for colour."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from rich.console import Console

from tmmu.cli.output.figures_text import figures_lines, fit_text
from tmmu.codec.percents import about_percent
from tmmu.codec.printable import align_columns, printable
from tmmu.ir.plan import JOINT
from tmmu.ir.program import AssumedRouting, Switches, factor_text
from tmmu.passes.operators.kernel_temporaries import KernelTemporaries
from tmmu.planner.arenas import readable_size
from tmmu.summary.plan_summary import STACK, ArenaLine, FitLine, LiveBuffer, OperatorRow, Peak, Summary

if TYPE_CHECKING:
    from tmmu.cache import CachedPlan
    from tmmu.driver import Compiled

size: Final = readable_size
MAX_INPUTS: Final = 4
"""Inputs that are named."""
STATE_NAMES: Final = {
    "weights": "weights that the step updates",
    "optimizer": "optimizer",
    "cache": "KV cache",
    "buffers": "buffers that the model updates",
}


class _Console(Console):
    """A rich console that leaves broken pipes to the error boundary instead of exiting by itself."""

    def on_broken_pipe(self) -> None:
        """Re-raise."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """A console that wraps and colours on a terminal only."""
    probe = Console(stderr=stderr)
    plain = not probe.is_terminal
    return _Console(
        stderr=stderr,
        width=10_000 if plain else None,  # a log is not wrapped
        color_system=None if plain else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


def print_summary(out: Console, summary: Summary, *, peaks: int = 1) -> None:
    """Print the summary with the ``peaks`` largest of its peaks."""
    out.print(printable(headline(summary)), style="bold")
    about = [*inputs_line(summary), *loss_line(summary.loss), *rewrite_line(summary.fit)]
    print_lines(out, [*about, "", *figures_lines(summary), ""])
    print_lines(out, [*arena_table(summary), ""])
    for peak in summary.peaks[:peaks]:
        print_lines(out, [peak_line(peak), *live_table(peak.buffers), ""])
    print_lines(out, [memory_line(summary), *ring_line(summary), *state_line(summary), fit_line(summary)])
    print_lines(out, [unplanned_line(summary)])


def print_lines(out: Console, lines: Iterable[str]) -> None:
    """Print lines, with unprintable characters escaped."""
    for line in lines:
        out.print(printable(line))


def unplanned_line(summary: Summary) -> str:
    """What takes memory of the device and is in no plan."""
    return f"exact: all bytes above. Not planned, only bounded by the reserve: {', '.join(summary.unplanned)}"


def headline(summary: Summary) -> str:
    """Model, mode, device, preset, and numbers of ops and buffers."""
    title = f"{summary.model or 'plan'}: {summary.mode}"
    device_text = f" on {summary.target}" if summary.target else ""
    return f"{title}{device_text}, preset {summary.preset}, {summary.ops} ops, {summary.buffers} buffers"


def inputs_line(summary: Summary) -> list[str]:
    """Name, dtype and shape of the first inputs, and how many more there are."""
    texts = [f"{tensor.name} {tensor.dtype}[{', '.join(map(str, tensor.shape))}]".strip() for tensor in summary.inputs]
    more = [f"and {len(texts) - MAX_INPUTS} more"] if len(texts) > MAX_INPUTS else []
    return [f"inputs: {', '.join([*texts[:MAX_INPUTS], *more])}"] if texts else []


def loss_line(text: str | None) -> list[str]:
    """The loss that tmmu takes of the output, and which dimension has the classes; empty for the model's own."""
    if not text:
        return []
    name, _, dim = text.partition(":dim=")
    return [f"loss: {name} of the output" + (f", classes in dimension {dim}" if dim else "")]


def rewrite_line(fit: FitLine | None) -> list[str]:
    """Of a rewritten graph: what runs again, at which cost, by which levers, of which base; empty for one as it is."""
    if fit is None:
        return []
    extra = f"{size(fit.bytes)} written again, {fit.flops} FLOPs more, about {about_percent(fit.time_ppm)} % more time"
    host = f", to the host and back {fit.from_host}" if fit.from_host else ""
    parts = f"rewritten: run again {fit.again} ({extra}), parts of lists {fit.sublists}{host}"
    levers = f"; levers: {', '.join(fit.levers)}" if fit.levers else ""
    budget = "" if fit.budget_bytes is None else f"; for {size(fit.budget_bytes)}"
    near = f"; near, not equal: {', '.join(fit.near)}" if fit.near else ""
    return [f"{parts}{levers}{near}{budget}; of graph {fit.base_hash[:16]}"]


def autocast_line(autocast: str | None, device: str) -> list[str]:
    """The region around forward and loss; empty without one."""
    return [f"autocast: {autocast} on {device}, forward and loss"] if autocast else []


def arena_table(summary: Summary) -> list[str]:
    """Heading and one line per non-empty arena; several arenas of the stack are indented below a line of the stack."""
    used = [arena for arena in summary.arenas if arena.slots]
    rows = [_arena_row(arena) for arena in used if arena.segment != STACK]
    stack = [arena for arena in used if arena.segment == STACK]
    if len(stack) > 1:
        line = summary.stack
        rows.append((STACK, size(line.peak), size(line.bound), "yes" if line.proven else "no", "", ""))
        shared = sum(arena.layout == JOINT for arena in stack) > 1
        rows += [_arena_row(arena, indent="  ", shared=shared and arena.layout == JOINT) for arena in stack]
    else:
        rows += [_arena_row(arena) for arena in stack]
    return align_columns("<>><>>", ("arena", "peak", "bound", "proven", "slots", "reuse"), rows)


def assumed_line(assumed: Sequence[str]) -> list[str]:
    """Inputs and buffers whose values the trace followed; empty where there are none."""
    names = [*assumed[:MAX_INPUTS], *([f"{len(assumed) - MAX_INPUTS} more"] if len(assumed) > MAX_INPUTS else [])]
    if not names:
        return []
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return [f"planned for these values of {listed}: with others the model may take another path"]


def routing_lines(routings: Sequence[AssumedRouting]) -> list[str]:
    """How gates were taken to route under a declared capacity, a line each; empty where no count was looked at."""
    return [
        f"planned for a routing, and for no run: an expert gets at most {row.capacity} of {row.tokens} tokens, each of "
        f"which chooses {row.choices} of {row.experts} (capacity factor {factor_text(row.factor)}, at {row.source}"
        f"{f', {row.gates} times' if row.gates > 1 else ''})"
        for row in routings
    ]


def routing_records(routings: Sequence[AssumedRouting]) -> list[dict[str, object]]:
    """The same as plain values, for JSON."""
    return [asdict(row) | {"factor": factor_text(row.factor)} for row in routings]


def temporaries_line(found: KernelTemporaries | None) -> list[str]:
    """What a GPU's kernels hold beside the plan, as far as that is known; empty where none of them holds anything."""
    if found is None or (not found.bytes and not found.unknown):
        return []
    place = "" if not found.bytes else f" at {found.operator}{f' ({found.source})' if found.source else ''}"
    known = f"at most {size(found.bytes)}{place}" if found.operator else "none known"
    more = len(found.unknown) - MAX_INPUTS
    names = ", ".join([*found.unknown[:MAX_INPUTS], *([f"{more} more"] if more > 0 else [])])
    return [f"kernels' own temporaries: {known}{f'; unknown for: {names}' if names else ''}"]


def switches_line(switches: Sequence[Switches]) -> list[str]:
    """Torch's switches that chose kernels and are not as torch has them; empty where all are."""
    named = ((name, str(value)) for row in switches for name, value in row)
    texts = dict.fromkeys(f"{name.removeprefix('torch.')}={value}" for name, value in named)
    return [f"kernels chosen under: {', '.join(texts)}"] if texts else []


def scaler_line(updates: int) -> list[str]:
    """What a scaler of gradients decides at run time; empty where there is none."""
    return ["planned for a step without overflow: a scaler leaves the update out in one with"] if updates else []


def survivors_line(survivors: Sequence[tuple[int, str]]) -> list[str]:
    """What a step leaves with somebody, and the line that makes most of it; empty where there is nothing."""
    if not survivors:
        return []
    by_source: dict[str, int] = {}
    for number, source in survivors:
        by_source[source] = by_source.get(source, 0) + number
    source = max(by_source, key=by_source.__getitem__)
    place = f" ({source})" if source else ""
    total = size(sum(number for number, _ in survivors))
    count = f"{len(survivors)} tensor{'s' if len(survivors) > 1 else ''}"
    return [f"left out: {count} of {total} that the step makes and somebody holds afterwards{place}"]


def _arena_row(arena: ArenaLine, *, indent: str = "", shared: bool = False) -> tuple[str, ...]:
    """An arena of a shared slab has no peak and no proof of its own, only a bound."""
    peak, proven = ("", "") if shared else (size(arena.peak), "yes" if arena.proven else "no")
    reuse = f"{arena.reuse_ppm // 1000 / 10:.1f} %"
    return (indent + arena.name, peak, size(arena.bound), proven, str(arena.slots), reuse)


def peak_line(peak: Peak) -> str:
    """Position and bytes of a peak, and how many of its buffers the table below shows."""
    shown = f"the largest {len(peak.buffers)} of {peak.live}" if len(peak.buffers) < peak.live else f"all {peak.live}"
    op_text = f" ({peak.op})" if peak.op else ""
    subject = "the stack is" if peak.arena == STACK else f"{peak.arena} are"
    return f"{subject} fullest at position {peak.position}{op_text}: {size(peak.bytes)}, {shown} buffers:"


def live_table(buffers: Iterable[LiveBuffer]) -> list[str]:
    """Heading and one line per buffer."""
    heading, *rows = live_rows(buffers)
    return align_columns(">><<<<", heading, rows)


def live_rows(buffers: Iterable[LiveBuffer]) -> list[tuple[str, ...]]:
    """Heading, then size, id, role, producer, module and source of each buffer."""
    rows = [
        (size(buffer.bytes), str(buffer.id), buffer.role, buffer.op or buffer.name, buffer.module, buffer.source)
        for buffer in buffers
    ]
    return [("size", "buffer", "role", "made by", "module", "source"), *rows]


def memory_line(summary: Summary) -> str:
    """The plan's bytes by segment, and the caller's inputs."""
    memory = summary.memory
    inputs = "" if memory.inputs is None else f" + inputs {size(memory.inputs)} (the caller's)"
    parts = f"text {size(memory.text)} + data {size(memory.data)} + stack {size(memory.stack)}{inputs}"
    return f"total {size(memory.total)} = {parts}"


def ring_line(summary: Summary) -> list[str]:
    """How weights stream; empty without a ring."""
    ring = summary.ring
    if ring is None:
        return []
    stays = f"text {size(ring.bytes)} = {size(ring.resident)} that stays"
    return [f"{stays} + a {ring.policy} ring for the rest of {size(ring.weights)} of weights"]


def state_line(summary: Summary) -> list[str]:
    """Kinds of state in the data segment; empty if there is none, or no graph."""
    parts = " + ".join(f"{STATE_NAMES[part.kind]} {size(part.bytes)}" for part in summary.state)
    return [f"data {size(summary.memory.data)} = {parts}"] if parts else []


def fit_line(summary: Summary) -> str:
    """The memory that a device needs for total and reserve, the sizes that have it, and the largest that does not.

    Sizes are those by which devices are sold, in GB of 10**9 bytes.
    """
    place = f" on {summary.target}" if summary.target else ""
    needs = f"{summary.mode}{place} needs {size(summary.memory.total + summary.reserve)} of device memory"
    return f"{needs} (total + {size(summary.reserve)} in reserve): {fit_text(summary.fits)}"


def seconds_line(seconds: Mapping[str, float]) -> str:
    """Stages in the order they ran."""
    return ", ".join(f"{stage} {taken:.2f} s" for stage, taken in seconds.items())


def print_origin(out: Console, compiled: "Compiled") -> None:
    """On a terminal, how long each stage took, what the specification calls ``allocation_time_ns``, and the cache."""
    if out.is_terminal:
        out.print(seconds_line(compiled.seconds), style="dim")
        if compiled.allocation_time_ns is not None:
            out.print(f"allocation_time_ns {compiled.allocation_time_ns}", style="dim")
        if compiled.cached:
            out.print(cache_line(compiled.cached), style="dim")


def cache_record(cached: "CachedPlan | None") -> dict[str, str] | None:
    """The JSON value of ``cache``: the level that had the plan, why it was not found, why it was not stored."""
    if cached is None:
        return None
    return {"origin": cached.origin, "miss": str(cached.miss or ""), "unkept": cached.store_error}


def cache_line(cached: "CachedPlan") -> str:
    """The same as one line of text."""
    reasons = "; ".join(text for text in (str(cached.miss or ""), cached.store_error) if text)
    return printable(f"cache: {cached.origin}" + (f" ({reasons})" if reasons else ""))


def op_table(rows: Iterable[OperatorRow]) -> list[str]:
    """Heading and one line per operator: calls, floating-point operations, whether the operator table has a row."""
    texts = [(row.operator, str(row.calls), str(row.flops), "known" if row.known else "default") for row in rows]
    return align_columns("<>><", ("operator", "calls", "flops", "rule"), texts)
