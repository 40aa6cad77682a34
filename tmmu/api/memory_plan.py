"""A plan as Python sees it: figures, what takes the memory, whether it fits, files."""

import html
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from tmmu.codec.files import write_together
from tmmu.codec.read import read_graph, read_plan
from tmmu.compare.timeline import levels, live_buffers, peak_level, placed_items
from tmmu.driver import FirstStep
from tmmu.eager.peak import EagerFigures, eager_figures, live_levels
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import INPUT, Graph, encode_graph
from tmmu.ir.plan import Plan, encode_plan, segment_bytes, slabs_of
from tmmu.judge.check import judge
from tmmu.planner.arenas import parse_size, readable_size

PLAN_SUFFIX: Final = ".plan.cbor"
IR_SUFFIX: Final = ".ir.cbor"
RESERVE: Final = 1 << 30
"""Bytes that ``fits`` keeps free for what is not planned: device context, library workspaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAtPeak:
    """A buffer that is live where the stack is fullest: padded bytes, and what makes it."""

    bytes: int
    name: str
    role: str
    operator: str
    module: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBytes:
    """Live bytes of the stack: ``planned`` at each position of the plan, ``eager`` during each call that eager makes.

    ``eager`` is empty where the graph does not say it.
    """

    planned: tuple[int, ...]
    eager: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """A judged plan and its graph. All figures are bytes.

    ``first_step``: of a step of the user's, its first run; ``None`` for a model and for a plan from a file.
    """

    graph: Graph
    plan: Plan
    first_step: FirstStep | None = None

    @cached_property
    def total(self) -> int:
        """A run inside the plan: weights, state, stack, and the caller's inputs."""
        roles = zip(self.graph.buffers.bytes, self.graph.buffers.role, strict=True)
        inputs = sum(size for size, role in roles if role == INPUT)
        segments = sum(segment_bytes(self.plan.arenas, segment) for segment in ("data", "stack"))
        text = self.plan.ring.bytes if self.plan.ring else segment_bytes(self.plan.arenas, "text")
        return segments + text + inputs

    @property
    def stack(self) -> int:
        """What is made and dropped during a run inside the plan, at its most."""
        return segment_bytes(self.plan.arenas, "stack")

    @cached_property
    def eager(self) -> EagerFigures:
        """A run of the model as it is. ``INVALID_CONFIG`` for a graph that does not say it (version 1)."""
        figures = eager_figures(self.graph)
        if figures is None:
            raise InvalidConfig("the graph does not say how long eager holds what", fix="plan the model again")
        return figures

    def fits(
        self, size: str | int, *, run: Literal["eager", "planned"] = "eager", reserve: str | int = RESERVE
    ) -> bool:
        """Whether a device of ``size`` (``"24GB"``, ``"80GiB"``, bytes) holds a run and ``reserve``."""
        if run not in ("eager", "planned"):
            raise InvalidConfig(f"run={run!r} is neither eager nor planned", fix="name one of the two")
        needed = self.eager.total_bytes if run == "eager" else self.total
        return needed + _bytes_of(reserve) <= _bytes_of(size)

    def largest(self, count: int = 10) -> tuple[BufferAtPeak, ...]:
        """The largest buffers that are live where the stack is fullest."""
        rows = sorted(self._peak_rows, key=lambda row: (-self.plan.buffers.bytes[row], self.plan.buffers.id[row]))
        return tuple(self._buffer(row) for row in rows[:count])

    def by_module(self) -> dict[str, int]:
        """Bytes that are live where the stack is fullest, by the module that makes them; most first."""
        sums: dict[str, int] = {}
        for row in self._peak_rows:
            buffer = self._buffer(row)
            sums[buffer.module] = sums.get(buffer.module, 0) + buffer.bytes
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    def timeline(self) -> LiveBytes:
        """Live bytes over the run, in the plan and in eager."""
        items = [item for slab in self._stack_slabs() for item in placed_items(self.plan, slab)]
        change = dict(levels(items))
        planned: list[int] = []
        for position in range(len(self.plan.order)):
            planned.append(change.get(position, planned[-1] if planned else 0))
        run = self.graph.notes.eager
        eager = live_levels(run.storages, run.calls) if run else []
        return LiveBytes(planned=tuple(planned), eager=tuple(eager))

    def save(self, path: str | Path) -> Path:
        """Write ``NAME.plan.cbor`` and its graph ``NAME.ir.cbor`` beside it, both or neither; the plan's path."""
        plan_path = Path(path)
        if not plan_path.name.endswith(PLAN_SUFFIX):
            plan_path = plan_path.with_name(f"{plan_path.name}{PLAN_SUFFIX}")
        write_together([(plan_path, encode_plan(self.plan)), (_graph_path(plan_path), encode_graph(self.graph))])
        return plan_path

    def to_dict(self) -> dict[str, object]:
        """The figures as plain values, for JSON."""
        eager = eager_figures(self.graph)
        return {
            "model": self.graph.notes.name,
            "device": self.graph.target,
            "mode": self.plan.mode,
            "preset": self.plan.preset,
            "digest": self.plan.digest.hex(),
            "planned": {"total_bytes": self.total, "stack_bytes": self.stack},
            "eager": None if eager is None else asdict(eager),
            "first_step": None if self.first_step is None else asdict(self.first_step),
            "largest": [asdict(buffer) for buffer in self.largest()],
            "by_module": self.by_module(),
        }

    def __repr__(self) -> str:
        name = f"{self.graph.notes.name}: {self.plan.mode} on {self.graph.target}"
        eager = eager_figures(self.graph)
        as_it_is = "" if eager is None else f", {readable_size(eager.total_bytes)} as it is"
        return f"<MemoryPlan {name}, {readable_size(self.total)} planned{as_it_is}>"

    def _repr_html_(self) -> str:
        """The largest buffers as a table, for notebooks."""
        rows = "".join(
            f"<tr><td>{readable_size(buffer.bytes)}</td>"
            + "".join(f"<td>{html.escape(text)}</td>" for text in (buffer.operator, buffer.module, buffer.source))
            + "</tr>"
            for buffer in self.largest()
        )
        head = "<tr><th>size</th><th>made by</th><th>module</th><th>source</th></tr>"
        return f"<p>{html.escape(repr(self))}</p><table>{head}{rows}</table>"

    @cached_property
    def _peak_rows(self) -> list[int]:
        """Rows of the plan's buffers that are live where the largest slab of the stack is fullest."""
        slabs = [tuple(placed_items(self.plan, slab)) for slab in self._stack_slabs()]
        fullest = max((slab for slab in slabs if slab), key=lambda slab: peak_level(slab)[1], default=())
        if not fullest:
            return []
        row_of = {buffer: row for row, buffer in enumerate(self.plan.buffers.id)}
        return [row_of[buffer] for buffer in live_buffers(self.plan, fullest, peak_level(fullest)[0])]

    def _stack_slabs(self) -> list[tuple[int, ...]]:
        arenas = self.plan.arenas
        return [slab for slab in slabs_of(arenas.segment, arenas.layout) if arenas.segment[slab[0]] == "stack"]

    def _buffer(self, row: int) -> BufferAtPeak:
        placed, notes = self.plan.buffers, self.graph.notes
        maker, buffer = self.plan.order[placed.birth[row]], placed.id[row]
        return BufferAtPeak(
            bytes=placed.bytes[row],
            name=notes.buffers[buffer],
            role=self.graph.buffers.role[buffer],
            operator=self.graph.ops.target[maker],
            module=notes.ops.module[maker],
            source=notes.ops.source[maker],
        )


def load(path: str | Path) -> MemoryPlan:
    """The plan of a file, judged against the graph beside it."""
    plan, graph = read_plan(Path(path)), read_graph(_graph_path(Path(path)))
    judge(graph, plan)
    return MemoryPlan(graph=graph, plan=plan)


def _graph_path(path: Path) -> Path:
    name = path.name.removesuffix(PLAN_SUFFIX)
    return path.with_name(f"{name}{IR_SUFFIX}")


def _bytes_of(size: str | int) -> int:
    return size if isinstance(size, int) else parse_size(size)
