"""``tmmu show``: the contents of a plan file, without torch and without planning."""

import sys
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.option_groups import OptionGroup, expand_groups
from tmmu.cli.output import render
from tmmu.cli.output.plot import can_print_braille, plot_lines
from tmmu.cli.output.semantics_report import semantics_lines, semantics_record
from tmmu.cli.parsing import parse_balance, parse_reserve
from tmmu.codec.load import ir_path, load_judged, load_plan
from tmmu.errors import InvalidConfig
from tmmu.export.live_curves import LiveCurve, eager_curve, stack_curve
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.planner.trace import Record, trace_records
from tmmu.summary.plan_summary import LISTED_BUFFERS, OperatorRow, Summary, operators, summarize

if TYPE_CHECKING:
    from tmmu.passes.semantics.view import SemanticView

GRAPH_MISSING: Final = "names, operators and inputs are in the graph, which is not here: put it beside the plan as"
HEXADECIMAL: Final = frozenset({"ir_hash", "replay_token_prefix", "plan_digest", "virtual_address"})

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowCommandOptions(OptionGroup):
    """Options of ``tmmu show``."""

    ir: options.GraphFile = None
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the allocation trace as JSON lines. Default: the summary.")
    ] = False
    peak: Annotated[
        bool, typer.Option("--peak", help="List every buffer that is live at the peak. Default: the largest.")
    ] = False
    ops: Annotated[
        bool, typer.Option("--ops", help="List the operators, and which the operator table lacks. Default: no.")
    ] = False
    semantics: Annotated[
        bool,
        typer.Option(
            "--semantics",
            help="List what each op is part of, its bytes, FLOPs and bound, the critical path, and what must lie "
            "together. Default: no.",
        ),
    ] = False
    balance: Annotated[
        str | None,
        typer.Option(
            metavar="FLOP/BYTE",
            help="Call an op compute-bound from so many FLOPs per byte on: a device's arithmetic over its memory rate. "
            "Default: 100.",
        ),
    ] = None
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw live bytes over time, of the plan and of a run as it is. Default: no.")
    ] = False
    reserve: options.Reserve = None
    as_json: options.Json = False


@app.command()
@expand_groups
def show(*, plan: options.PlanFile, settings: ShowCommandOptions) -> options.Run:
    """Print what PLAN holds."""
    return lambda: run_show(_show_job(plan, settings))


def _show_job(plan: Path, settings: ShowCommandOptions) -> "ShowJob":
    if settings.balance is not None and not settings.semantics:
        raise InvalidConfig("--balance says when an op is compute-bound", fix="add --semantics")
    balance = parse_balance(settings.balance)
    return ShowJob(plan=plan, settings=settings, balance=balance, reserve=parse_reserve(settings.reserve))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowJob:
    """One run of ``tmmu show``, every option checked."""

    plan: Path
    settings: ShowCommandOptions
    balance: Fraction | None
    reserve: int


def run_show(job: ShowJob) -> int:
    """Print the summary, the trace or the operators; returns 0."""
    plan = load_plan(job.plan)
    graph = _graph_of(job, plan)
    if job.settings.as_json:
        print_json(_record(job, plan, graph))
        return 0
    if job.settings.trace:
        for record in trace_records(plan):
            print_json(_readable(record))
        return 0
    table = render.op_table(_operators(graph, plan)) if job.settings.ops else []
    plot = plot_lines(_curves(graph, plan), braille=can_print_braille(sys.stdout.encoding)) if job.settings.plot else []
    semantics = semantics_lines(*_semantics(job, graph, plan)) if job.settings.semantics else []
    out = render.console()
    summary = _summary(job, plan, graph)
    render.print_summary(out, summary, peaks=len(summary.peaks) if job.settings.peak else 1)
    if graph is None:
        render.print_lines(out, [f"{GRAPH_MISSING} {ir_path(None, job.plan)}, or name it with --ir"])
    if table:
        render.print_lines(out, ["", *table])
    if semantics:
        render.print_lines(out, ["", *semantics])
    if plot:
        render.print_lines(out, ["", *plot])
    return 0


def _graph_of(job: ShowJob, plan: Plan) -> Graph | None:
    """The graph of ``--ir``, or the one beside the plan if it exists; the plan is sound for it."""
    path = ir_path(job.settings.ir, job.plan)
    if job.settings.ir is None and not path.exists():
        return None
    return load_judged(plan, path, None, plan_name=str(job.plan))


def _operators(graph: Graph | None, plan: Plan) -> tuple[OperatorRow, ...]:
    if graph is None:
        raise InvalidConfig("--ops: a plan alone does not name its operators", fix="name its graph with --ir")
    from tmmu.passes.operators.table import facts_of

    return operators(graph, plan, lambda name: facts_of(name).has_row)


def _curves(graph: Graph | None, plan: Plan) -> list[tuple[str, LiveCurve]]:
    """What ``--plot`` draws: the stack of a run as it is, where the graph says it, and of the plan."""
    eager = eager_curve(graph, plan.mode)
    as_it_is = [("run as it is, stack by eager's calls", eager)] if eager else []
    return [*as_it_is, ("inside the plan, stack by position", stack_curve(plan))]


def _semantics(job: ShowJob, graph: Graph | None, plan: Plan) -> "tuple[Graph, SemanticView]":
    if graph is None:
        raise InvalidConfig("--semantics: a plan alone does not say what it computes", fix="name its graph with --ir")
    from tmmu.passes.semantics.view import BALANCE, semantic_view

    return graph, semantic_view(graph, plan, job.balance or BALANCE)


def _summary(job: ShowJob, plan: Plan, graph: Graph | None) -> Summary:
    return summarize(plan, graph, reserve=job.reserve, listed=None if job.settings.peak else LISTED_BUFFERS)


def _record(job: ShowJob, plan: Plan, graph: Graph | None) -> dict[str, object]:
    record: dict[str, object] = asdict(_summary(job, plan, graph))
    if job.settings.trace:
        record["trace"] = [_readable(entry) for entry in trace_records(plan)]
    if job.settings.ops:
        record["operators"] = [asdict(row) for row in _operators(graph, plan)]
    if job.settings.semantics:
        record["semantics"] = semantics_record(*_semantics(job, graph, plan))
    if job.settings.plot:
        eager = eager_curve(graph, plan.mode)
        record["plot"] = {"planned": asdict(stack_curve(plan)), "eager": asdict(eager) if eager else None}
    return record


def _readable(record: Record) -> dict[str, object]:
    """A trace record for JSON: bytes as hexadecimal text; addresses too, since JSON readers round 64-bit integers."""
    return {name: _text(content) if name in HEXADECIMAL else content for name, content in record.items()}


def _text(content: object) -> object:
    if isinstance(content, bytes):
        return content.hex()
    return f"0x{content:016x}" if isinstance(content, int) else content
