"""The table of a step in one order, for the search of what to run again. O(size of the facts)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId
from tmmu.planner.fit.cells import StepCells
from tmmu.planner.fit.step_facts import Ints, Ragged, RerunGroup, StepFacts
from tmmu.planner.pack.exact.jit import make_cells


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """``cells``: the columns in the order of the rows; ``op``: per row its op, then those of rows that are twins.

    Per gap, ``gap``: its place in the facts, whatever the order; ``droppable``: whether its buffer can be made again
    after it; ``last_use``: whether it is the last one, of what is no output.
    """

    facts: StepFacts
    cells: StepCells
    op: tuple[OpId, ...]
    gap: Ints
    droppable: npt.NDArray[np.bool_]
    last_use: npt.NDArray[np.bool_]

    @property
    def graph(self) -> Graph:
        """The graph of the step."""
        return self.facts.graph


def step_table(facts: StepFacts, order: Sequence[int] = (), *, takes_over: bool = True) -> StepTable:
    """The table in an order that keeps the edges (default: as it is).

    ``takes_over``: results may take over operands.
    """
    ops = len(facts.graph.ops)
    rows = np.array(order or range(ops), dtype=np.int64)
    every_row = np.concatenate([rows, np.arange(ops, ops + len(facts.twins), dtype=np.int64)])
    position = np.empty(ops, dtype=np.int64)
    position[rows] = np.arange(ops)
    group_of, made_at = _groups(facts, position)
    touch = _touches(facts, rows)
    columns = touch | {
        "size": facts.size, "kind": facts.kind, "outputs": np.array(facts.outputs, dtype=np.int64),
        "row_time": facts.row_time[every_row], "row_flops": facts.row_flops[every_row],
        "group_of": group_of, "kept_version": facts.kept_version.picked(every_row).of,
        "over_old": facts.over_old.picked(every_row).of,
    }  # fmt: skip
    columns["over_at"], columns["over_new"] = facts.over_new.picked(every_row)
    if not takes_over:
        columns["over_at"] = np.zeros_like(columns["over_at"])
    columns["read_at"], columns["read_of"] = facts.read.picked(every_row)
    columns["write_at"], columns["write_of"] = facts.write.picked(every_row)
    columns["kept_read_at"], columns["kept_read_of"] = facts.kept_read.picked(every_row)
    columns["kept_write_at"], columns["kept_write_of"] = facts.kept_write.picked(rows)
    columns["group_at"], columns["group_rows"] = Ragged.joined(
        [_rows_again(group, position, facts.twins) for group in facts.groups]
    )
    buffer, row = touch["touch_of"], touch["touch_row"]
    return StepTable(
        facts=facts,
        cells=StepCells(**{name: make_cells(column) for name, column in columns.items()}),
        op=(*map(OpId, rows.tolist()), *facts.twins),
        gap=Ragged(facts.touch.at, np.arange(len(facts.touch.of))).picked(rows).of,
        droppable=(group_of[buffer] >= 0) & (row >= made_at[buffer]),
        last_use=(touch["next_use"] == ops) & ~np.isin(buffer, columns["outputs"]),
    )


def _touches(facts: StepFacts, rows: Ints) -> dict[str, Ints]:
    """The columns of gaps, row by row, and by buffer."""
    at, buffer = facts.touch.picked(rows)
    row = np.repeat(np.arange(len(rows), dtype=np.int64), at[1:] - at[:-1])
    use_of = np.argsort(buffer, kind="stable").astype(np.int64)
    use_at = np.zeros(len(facts.size) + 1, dtype=np.int64)
    np.cumsum(np.bincount(buffer, minlength=len(facts.size)), out=use_at[1:])
    next_use = np.full(len(buffer), len(rows), dtype=np.int64)
    goes_on = buffer[use_of[1:]] == buffer[use_of[:-1]]
    next_use[use_of[:-1][goes_on]] = row[use_of[1:][goes_on]]
    return {
        "touch_at": at, "touch_of": buffer, "touch_row": row, "use_at": use_at, "use_of": use_of, "next_use": next_use
    }  # fmt: skip


def _groups(facts: StepFacts, position: Ints) -> tuple[Ints, Ints]:
    """Per cell the group that makes it, -1 without, and the row that makes it last."""
    group_of = np.full(len(facts.size), -1, dtype=np.int64)
    made_at = np.zeros(len(facts.size), dtype=np.int64)
    for index, group in enumerate(facts.groups):
        last = max(position[op] for op in group.ops)
        if all(position[user] > last for user in group.users):
            for cell in group.makes:
                group_of[cell], made_at[cell] = index, last
    return group_of, made_at


def _rows_again(group: RerunGroup, position: Ints, twins: dict[OpId, int]) -> list[int]:
    return [twins.get(op, int(position[op])) for op in sorted(group.ops, key=lambda op: int(position[op]))]
