"""A plan as Python sees it: figures, what takes the memory, whether it fits, files."""

import html
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from tmmu.api.arguments import bytes_of, count_of, path_of, require_kind, texts_of
from tmmu.api.plan_diff import PlanDiff
from tmmu.api.size_limit import SizeLimit
from tmmu.codec.files import write_atomic, write_together
from tmmu.codec.load import PLAN_SUFFIX, ir_path, load_judged, load_plan
from tmmu.compare.match import PlannedGraph
from tmmu.driver import FirstStep
from tmmu.eager.peak import EagerFigures, eager_figures, eager_run, live_levels
from tmmu.errors import InvalidConfig
from tmmu.export.live_curves import stack_curve
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.plan import Plan, encode_plan
from tmmu.ir.program import AssumedRouting, factor_text
from tmmu.planner.arenas import readable_size
from tmmu.rank_plans import RankKind
from tmmu.report.contents import report_contents
from tmmu.report.page import page_html
from tmmu.summary.diff_report import compare
from tmmu.summary.plan_summary import DEFAULT_RESERVE, LiveBuffer, Memory, memory_of, stack_peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBytes:
    """Live bytes of the stack: ``planned`` at each position of the plan, ``eager`` during each call that eager makes.

    ``eager`` is empty where the graph does not say it.
    """

    planned: tuple[int, ...]
    eager: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSize:
    """``plan``: that of the largest ``size``; ``sizes``: those that plans were made of, in that order.

    ``predicted``: the plan's graph is what was predicted of the first ones, byte for byte; else plans were searched.
    ``unit``: only multiples of it were looked at. ``refusal``: what the model says against the next size, if so.
    ``extra_time_ppm``: what levers of fit take more, an estimate; 0 without them.
    """

    size: int
    plan: "MemoryPlan"
    sizes: tuple[int, ...]
    predicted: bool
    unit: int = 1
    extra_time_ppm: int = 0
    refusal: str = ""


class PlanSizes(Protocol):
    """How a plan is made at other sizes."""

    def largest(self, axis: str, limit: SizeLimit, inputs: Callable[[int], Any] | None) -> MaxSize:
        """The largest size within the limit."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """A judged plan and its graph. All figures are bytes.

    ``first_step``: of a step of the user's, its first run; ``None`` for a model and for a plan from a file.
    ``assumed``: inputs and buffers whose values the trace followed; with others the model may take another path. Not
    known of a plan from a file. ``routings``: how gates were taken to route under a declared capacity, likewise; the
    name of the graph says the factor. ``ranks``: all kinds of ranks, where this is the plan of the fullest;
    ``rank_reads``: lines in which the program asks which of all ranks it is, by which ranks of a kind may differ.
    ``sizes``: how ``max_size`` makes it at others; ``None`` for a plan from a file.
    """

    graph: Graph
    plan: Plan
    first_step: FirstStep | None = None
    assumed: tuple[str, ...] = ()
    routings: tuple[AssumedRouting, ...] = ()
    ranks: tuple[RankKind, ...] = ()
    rank_reads: tuple[str, ...] = ()
    sizes: PlanSizes | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_kind(self.graph, Graph, "a plan's own graph: tmmu.plan and tmmu.load make both")
        require_kind(self.plan, Plan, "a plan of that graph: tmmu.plan and tmmu.load make both")

    @property
    def total(self) -> int:
        """A run inside the plan: weights, state, stack, and the caller's inputs."""
        return self._memory.total

    @property
    def stack(self) -> int:
        """What is made and dropped during a run inside the plan, at its most."""
        return self._memory.stack

    @property
    def eager(self) -> EagerFigures:
        """A run of the model as it is. ``INVALID_CONFIG`` for a graph that does not say it.

        That is one of version 1, and that of a training step for a plan of its forward half.
        """
        if self._eager is None:
            raise InvalidConfig("the graph does not say what eager holds in this run", fix="plan the model again")
        return self._eager

    @property
    def needed_bytes(self) -> int:
        """What runs as it is need: of a step's first run and a later one, the larger. Errors as of ``eager``."""
        return max(self.eager.total_bytes, 0 if self.first_step is None else self.first_step.total_bytes)

    def fits(
        self, size: str | int, *, run: Literal["eager", "planned"] = "eager", reserve: str | int = DEFAULT_RESERVE
    ) -> bool:
        """Whether a device of ``size`` (``"24GB"``, ``"80GiB"``, bytes) holds a run and ``reserve``.

        As it is (``eager``), a step has to fit in its first run too.
        """
        if run not in ("eager", "planned"):
            raise InvalidConfig(f"run={run!r} is neither eager nor planned", fix="name one of the two")
        needed = self.needed_bytes if run == "eager" else self.total
        return needed + bytes_of(reserve) <= bytes_of(size)

    def max_size(  # noqa: PLR0913 - the options of one search, by name
        self,
        axis: str,
        size: str | int,
        *,
        inputs: Callable[[int], Any] | None = None,
        reserve: str | int = DEFAULT_RESERVE,
        fit: bool = False,
        near: bool = False,
    ) -> MaxSize:
        """The largest ``batch`` or ``seq`` whose run inside its plan fits in ``size`` beside ``reserve``.

        What was planned is traced at a few sizes, with meta tensors like its inputs: a batch is their dimension 0, a
        sequence dimension 1. ``inputs``: a function that makes the inputs of a size, for any other ``axis`` too.
        ``fit``: with the levers of ``tmmu fit``, eager's bits; ``near``: those that are only near too.
        Errors: ``BUDGET_TOO_SMALL`` where not even 1 fits; ``INVALID_CONFIG`` for a plan from a file, inputs that agree
        on no size, and a module with bytes that is gone, which no plan keeps alive; those of ``tmmu.plan`` at a start.
        """
        if not isinstance(axis, str) or not axis.isidentifier():
            raise InvalidConfig(f"{axis!r:.40} is no name of a size", fix="use batch or seq")
        if inputs is not None and not callable(inputs):
            raise InvalidConfig("inputs is no function", fix=f"give a function from {axis} to the inputs")
        limit = SizeLimit.of(size, reserve, fit=fit, near=near)
        if self.sizes is None:
            raise InvalidConfig("the plan has one size: it does not know its model", fix="plan the model, and ask that")
        return self.sizes.largest(axis, limit, inputs)

    def largest(self, count: int = 10) -> tuple[LiveBuffer, ...]:
        """The largest buffers that are live where the stack is fullest, without those of no bytes."""
        return tuple(buffer for buffer in self._live[: count_of(count)] if buffer.bytes)

    def by_module(self) -> dict[str, int]:
        """Bytes that are live where the stack is fullest, by the module that makes them; most first."""
        sums: dict[str, int] = {}
        for buffer in self._live:
            sums[buffer.module] = sums.get(buffer.module, 0) + buffer.bytes
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    def timeline(self) -> LiveBytes:
        """Live bytes over the run, in the plan and in eager."""
        change, level, planned = dict(stack_curve(self.plan).steps), 0, list[int]()
        for position in range(len(self.plan.order)):
            level = change.get(position, level)
            planned.append(level)
        run = eager_run(self.graph, self.plan.mode)
        eager = live_levels(run.storages, run.calls) if run else []
        return LiveBytes(planned=tuple(planned), eager=tuple(eager))

    def diff(self, other: "MemoryPlan", *, names: tuple[str, str] = ("before", "after")) -> PlanDiff:
        """What ``other`` needs more than this plan, and which line of the model makes the difference."""
        before, after = (PlannedGraph(graph=side.graph, plan=side.plan) for side in (self, require_plan(other)))
        texts = texts_of(names, "names")
        if len(texts) != 2:
            raise InvalidConfig(f"{len(texts)} names for two plans", fix="name both")
        return PlanDiff(report=compare(before, after, names=(texts[0], texts[1])))

    def report(self, path: str | Path | None = None, *, against: "MemoryPlan | None" = None) -> Path:
        """Write the plan as one HTML file that needs no network; ``against`` is shown beside it. The file's path.

        ``path``: a file, or a folder for ``NAME.html``; by default in the working folder.
        """
        plans = (self,) if against is None else (self, require_plan(against))
        name = self.graph.notes.name or "plan"
        file = Path() if path is None else path_of(path, "the report's file")
        file = file / f"{_file_name(name)}.html" if file.is_dir() else file
        contents = [report_contents(side.graph.notes.name or name, side.plan, side.graph) for side in plans]
        write_atomic(file, page_html(contents))
        return file

    def save(self, path: str | Path) -> Path:
        """Write ``NAME.plan.cbor`` and its graph ``NAME.ir.cbor`` beside it, both or neither; the plan's path."""
        plan_path = path_of(path, "the plan's file")
        if not plan_path.name:
            raise InvalidConfig(f"{str(path)!r} is a folder", fix="name a file in it")
        if not plan_path.name.endswith(PLAN_SUFFIX):
            plan_path = plan_path.with_name(f"{plan_path.name}{PLAN_SUFFIX}")
        write_together([(plan_path, encode_plan(self.plan)), (ir_path(None, plan_path), encode_graph(self.graph))])
        return plan_path

    def to_dict(self) -> dict[str, object]:
        """The figures as plain values, for JSON."""
        eager = self._eager
        return {
            "model": self.graph.notes.name,
            "device": self.graph.target,
            "mode": self.plan.mode,
            "preset": self.plan.preset,
            "digest": self.plan.digest.hex(),
            "planned": {"total_bytes": self.total, "stack_bytes": self.stack},
            "eager": None if eager is None else asdict(eager),
            "first_step": None if self.first_step is None else asdict(self.first_step),
            "assumed": list(self.assumed),
            "routings": [asdict(row) | {"factor": factor_text(row.factor)} for row in self.routings],
            "largest": [asdict(buffer) for buffer in self.largest()],
            "by_module": self.by_module(),
        }

    def __repr__(self) -> str:
        name = f"{self.graph.notes.name}: {self.plan.mode} on {self.graph.target}"
        eager = self._eager
        as_it_is = "" if eager is None else f", {readable_size(eager.total_bytes)} as it is"
        return f"<MemoryPlan {name}, {readable_size(self.total)} planned{as_it_is}>"

    def _repr_html_(self) -> str:
        """The largest buffers as a table, for notebooks."""
        rows = "".join(
            f"<tr><td>{readable_size(buffer.bytes)}</td>"
            + "".join(f"<td>{html.escape(text)}</td>" for text in (buffer.op, buffer.module, buffer.source))
            + "</tr>"
            for buffer in self.largest()
        )
        head = "<tr><th>size</th><th>made by</th><th>module</th><th>source</th></tr>"
        return f"<p>{html.escape(repr(self))}</p><table>{head}{rows}</table>"

    @cached_property
    def _eager(self) -> EagerFigures | None:
        """Once: the allocator's model takes each storage's alloc and free."""
        return eager_figures(self.graph, self.plan.mode)

    @cached_property
    def _memory(self) -> Memory:
        return memory_of(self.plan, self.graph)

    @cached_property
    def _live(self) -> tuple[LiveBuffer, ...]:
        """What is live where the largest slab of the stack is fullest, largest first."""
        peaks = stack_peaks(self.plan, self.graph, None)
        return peaks[0].buffers if peaks else ()


def load(path: str | Path) -> MemoryPlan:
    """The plan of a file, judged against the graph beside it."""
    file = path_of(path, "the plan's file")
    plan = load_plan(file)
    return MemoryPlan(graph=load_judged(plan, ir_path(None, file), None, plan_name=str(file)), plan=plan)


def require_plan(value: object) -> MemoryPlan:
    """The plan itself; ``INVALID_CONFIG`` for anything else."""
    if isinstance(value, MemoryPlan):
        return value
    raise InvalidConfig(f"a {type(value).__name__} is no plan", fix="give what tmmu.plan or tmmu.load returns")


def _file_name(name: str) -> str:
    """A model's name as a file's: letters, digits and ``-_.`` alone."""
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in name)[:100]
