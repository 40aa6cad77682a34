"""``tmmu show``: what stands in a plan file, without torch and without planning anything."""

from dataclasses import asdict, dataclass
from pathlib import Path

from tmmu.cli import render
from tmmu.cli.boundary import print_json
from tmmu.cli.options import ir_path
from tmmu.cli.summary import LARGEST, Summary, operators, summarize
from tmmu.errors import InvalidConfig, PlanMismatch
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.ir.read import read_graph, read_plan
from tmmu.planner.trace import trace_records


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowJob:
    """One run of ``tmmu show``, every option checked."""

    plan: Path
    ir: Path | None
    trace: bool
    peak: bool
    ops: bool
    reserve: int
    json: bool


def run_show(job: ShowJob) -> int:
    """The summary, or the trace, or the operators; 0."""
    plan = read_plan(job.plan)
    graph = _graph_of(job, plan)
    if job.json:
        print_json(_record(job, plan, graph))
        return 0
    if job.trace:
        for record in trace_records(plan):
            print_json(record)
        return 0
    out = render.console()
    render.print_summary(out, _summary(job, plan, graph))
    if job.ops:
        render.print_lines(out, ["", *render.op_table(operators(_needed(graph), plan))])
    return 0


def _graph_of(job: ShowJob, plan: Plan) -> Graph | None:
    """The plan's graph: the one named, which must exist and match, or the one beside the plan where there is one."""
    path = ir_path(job.ir, job.plan)
    if job.ir is None and not path.exists():
        return None
    graph = read_graph(path)
    if graph.ir_hash != plan.ir_hash:
        raise PlanMismatch(f"{job.plan} is not a plan of {path}", fix="name the graph it was made from with --ir")
    return graph


def _needed(graph: Graph | None) -> Graph:
    if graph is None:
        raise InvalidConfig("--ops: a plan alone does not name its operators", fix="name its graph with --ir")
    return graph


def _summary(job: ShowJob, plan: Plan, graph: Graph | None) -> Summary:
    return summarize(plan, graph, reserve=job.reserve, listed=None if job.peak else LARGEST)


def _record(job: ShowJob, plan: Plan, graph: Graph | None) -> dict[str, object]:
    record: dict[str, object] = asdict(_summary(job, plan, graph))
    if job.trace:
        record["trace"] = list(trace_records(plan))
    if job.ops:
        record["operators"] = [asdict(row) for row in operators(_needed(graph), plan)]
    return record
