"""What goes from one block of a model into the next one stays available for as long as something may run again."""

from tmmu.ir.ids import OpId
from tmmu.planner.fit.seeds.seed import Seed
from tmmu.planner.fit.step_table import StepTable


def block_boundaries(table: StepTable) -> Seed | None:
    """Buffers that go from one numbered module (``layers.3``) into another in the forward pass, and that what runs
    again may want after their last use; ``None`` where there are none. O(size of the step).
    """
    last = _last_uses(table)
    reach = _reach(table, last)
    cells = tuple(cell for cell in _crossing(table) if reach[cell] > last[cell])
    return Seed(available=cells) if cells else None


def _crossing(table: StepTable) -> dict[int, None]:
    graph, facts = table.graph, table.facts
    made_in: dict[int, str] = {}
    crossing: dict[int, None] = {}
    blocks = {module: _block(module) for module in set(graph.notes.ops.module)}
    for op in table.op[: len(graph.ops)]:
        if graph.ops.stage[op] != "forward":
            continue
        block = blocks[graph.notes.ops.module[op]]
        for cell in facts.read.row(op):
            if made_in.get(cell, block) != block:
                crossing[cell] = None
        for cell in facts.write.row(op):
            made_in[cell] = block
    return crossing


def _block(module: str) -> str:
    """A module's path up to its first number; empty without one."""
    parts = module.split(".")
    numbered = next((place for place, part in enumerate(parts) if part.isdigit()), -1)
    return ".".join(parts[: numbered + 1])


def _last_uses(table: StepTable) -> list[int]:
    """Per cell the row of its last use; -1 without any."""
    last = [-1] * len(table.facts.size)
    for row, op in enumerate(table.op[: len(table.graph.ops)]):
        for cell in table.facts.touch.row(op):
            last[cell] = row
    return last


def _reach(table: StepTable, last: list[int]) -> list[int]:
    """Per cell the last use of what is made of it, directly or through what is made again."""
    facts, position = table.facts, {op: row for row, op in enumerate(table.op[: len(table.graph.ops)])}
    reach = [-1] * len(facts.size)

    def last_row(ops: tuple[OpId, ...]) -> int:
        return max(position[op] for op in ops)

    # What is made of a group's results is made by groups whose last ops come after its own.
    for group in sorted(facts.groups, key=lambda group: -last_row(group.ops)):
        until = max((max(last[cell], reach[cell]) for cell in group.makes), default=-1)
        for op in group.ops:
            for cell in facts.read.row(facts.twins.get(op, op)):
                if cell not in group.makes:
                    reach[cell] = max(reach[cell], until)
    return reach
