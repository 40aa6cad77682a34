"""What a forward op saves for its gradient: the values of the forward half that the backward half reads."""

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from tmmu.passes.capture.program import Window
from tmmu.passes.operators.table import facts_of

if TYPE_CHECKING:
    from tmmu.passes.lowering.lower import OpDraft


def mark_saves(ops: "Sequence[OpDraft]", windows: Sequence[Window], persistent: Set[int]) -> None:
    """Give each saved value to the op that saved it, and mark what is cheap to compute again.

    The saver is the forward op with the gradient's autograd number, where that op reads or writes the value;
    else the op that wrote it.
    """
    writer = {value: index for index, op in enumerate(ops) if op.stage == "forward" for value in op.writes}
    by_number: dict[int, list[int]] = {}
    for index, op in enumerate(ops):
        if op.stage == "forward":
            by_number.setdefault(op.sequence, []).append(index)
    saved: list[dict[int, None]] = [{} for _ in ops]
    trains = False
    for op in ops:
        if op.stage != "backward":
            continue
        trains = True
        for value in op.reads:
            if value in writer and windows[value].storage not in persistent:
                near = (i for i in by_number.get(op.sequence, ()) if value in ops[i].reads or value in ops[i].writes)
                saved[next(near, writer[value])][value] = None
    for op, values in zip(ops, saved, strict=True):
        op.saves = list(values)
        facts = facts_of(op.target)
        op.recompute = trains and op.stage == "forward" and facts.elementwise and not facts.random
