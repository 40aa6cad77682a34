"""Whether two runs of a user's step in a row are the same step: calls, windows and lifetimes; numbers may differ."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final

from torch import fx

from tmmu.eager.peak import live_levels
from tmmu.errors import CaptureFailed
from tmmu.ir.lifetimes import EARLIER, EagerRun, Lifetimes
from tmmu.ir.program import NumberFormula
from tmmu.passes.capture.program import CapturedProgram, Window
from tmmu.passes.capture.record.lifetimes import FUNCTIONS
from tmmu.passes.capture.sources import UserFrame, display_name

_HOLDS_OTHERWISE: Final = "the step holds otherwise each time"
_LET_GO: Final = "plan a step that keeps and lets go of the same tensors each time it runs"


def require_agreement(steady: CapturedProgram, again: CapturedProgram, folder: str) -> None:
    """Two runs in a row make the same calls on the same windows, and let go of what they make after the same ones.

    Where only numbers differ, they are inputs. ``CAPTURE_FAILED`` that names the first call or storage that differs.
    """
    calls, others = (
        [node for node in program.graph.nodes if node.op == "call_function"] for program in (steady, again)
    )
    for call, other in zip_longest(calls, others):
        if call is None or other is None or _form(call) != _form(other):
            raise CaptureFailed(
                f"the step does otherwise each time: {_difference(calls, others, folder)}", fix=_repair(steady, again)
            )
        if _numbers(call) != _numbers(other):
            call.meta["numbers_vary"] = True
    _require_same_results(steady, again, folder)
    _require_same_lifetimes(steady, again)


def _require_same_results(steady: CapturedProgram, again: CapturedProgram, folder: str) -> None:
    """What one run leaves behind, the other leaves too."""
    left, others = ({window.storage for window in program.outputs} for program in (steady, again))
    for storage in sorted(left ^ others):
        when = ", and the next time not" if storage in left else " the next time alone"
        text = f"{_HOLDS_OTHERWISE}: {_made_by(steady, storage, folder)} is held after the step{when}"
        raise CaptureFailed(text, fix=_LET_GO)
    if set(steady.outputs) != set(again.outputs):
        raise CaptureFailed("the step leaves other views of its tensors the next time", fix=_LET_GO)


def _require_same_lifetimes(steady: CapturedProgram, again: CapturedProgram) -> None:
    """Storages go after the same calls: else eager's figure is true of one of the two runs alone."""
    if steady.eager is None or again.eager is None:
        return
    calls = steady.eager.calls
    for table, other in ((steady.eager.storages, again.eager.storages), (steady.eager.host, again.eager.host)):
        for row, next_row in zip_longest(_made_rows(table), _made_rows(other)):
            if row is None or next_row is None or row[:3] != next_row[:3]:
                ends = [_end(side, calls) for side in (row, next_row)]
                what = f"{_HOLDS_OTHERWISE}: {_named(row or next_row)} {ends[0]}, and the next time {ends[1]}"
                raise CaptureFailed(what, fix=_LET_GO)


_Row = tuple[int, int, int, str, str]
"""Birth, death, bytes, maker and line of a storage."""


def _made_rows(table: Lifetimes) -> Iterator[_Row]:
    """Of what the step makes. What was there before and goes in it, is no part of one step (``with_longer_lives``)."""
    rows = zip(table.birth, table.death, table.bytes, table.maker, table.source, strict=True)
    return (row for row in rows if row[3] != EARLIER)


def _named(row: _Row | None) -> str:
    if row is None:
        return "a tensor"
    _, _, size, maker, source = row
    return f"the {size:,} bytes of {maker}" + (f" at {source}" if source else "")


def _end(row: _Row | None, calls: int) -> str:
    if row is None:
        return "are not made"
    return "stay until the step ends" if row[1] >= calls else f"go before call {row[1]}"


def _made_by(program: CapturedProgram, storage: int, folder: str) -> str:
    """``operator at file:line`` of the first call that has a storage."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    found = (p for p, node in enumerate(calls) if any(w and w.storage == storage for w in node.meta["windows"]))
    position = next(found, None)
    return "a tensor from before" if position is None else f"the result of {_text(calls, position, folder)}"


def with_longer_lives(steady: CapturedProgram, again: CapturedProgram) -> CapturedProgram:
    """``steady`` with the eager figures of that of two agreeing runs that holds more of what was there before them.

    A queue of two losses lets go of one in the third step first: the second is not yet what all later ones are.
    """
    if steady.eager is None or again.eager is None or _peak(again.eager) <= _peak(steady.eager):
        return steady
    return replace(steady, eager=again.eager, growth=again.growth)


def _peak(run: EagerRun) -> int:
    return run.persistent_bytes + max(live_levels(run.storages, run.calls), default=0)


def _repair(steady: CapturedProgram, again: CapturedProgram) -> str:
    """What to do about a step that depends on how often it ran: an accumulation by a counter has several in one."""
    if steady.remains and again.remains and steady.remains.updates != again.remains.updates:
        return (
            f"it called an optimizer's step {steady.remains.updates} times, and the next time {again.remains.updates}: "
            "plan one function that takes all batches of one update, with the optimizer's step at its end"
        )
    return "plan a step that does not depend on how often it ran"


def _difference(calls: list[fx.Node], others: list[fx.Node], folder: str) -> str:
    """The first call of two runs by which a reader can tell them apart; ids of storages differ before it."""
    for position, (call, other) in enumerate(zip_longest(calls, others)):
        if call is None or other is None or _look(call) != _look(other):
            texts = [_text(runs, position, folder) for runs in (calls, others)]
            return f"call {position} is {texts[0]}, and the next time {texts[1]}"
    position = next(p for p, pair in enumerate(zip(calls, others, strict=True)) if _form(pair[0]) != _form(pair[1]))
    return f"call {position}, {_text(calls, position, folder)}, works on another tensor the next time"


def _look(node: fx.Node) -> tuple[Any, ...]:
    """What a reader sees of a call: operator, line and the form of its results."""
    windows: tuple[Window | None, ...] = node.meta.get("windows") or ()
    forms = [window and (window.shape, window.stride, window.dtype) for window in windows]
    return str(node.target), node.meta.get("source"), forms


def _text(calls: list[fx.Node], position: int, folder: str) -> str:
    """``operator at file:line``: of the call, else of the user's frame around it, else of the call before."""
    if position >= len(calls):
        return "none"
    call = calls[position]
    if line := call.meta.get("source") or _frame_line(call, folder):
        return f"{call.target} at {line}"
    earlier = (node.meta.get("source") or _frame_line(node, folder) for node in reversed(calls[:position]))
    after = next(filter(None, earlier), "")
    return f"{call.target} after {after}" if after else f"{call.target} at the step's begin"


def _frame_line(call: fx.Node, folder: str) -> str:
    frames: tuple[UserFrame, ...] = call.meta.get(FUNCTIONS, ())
    return f"{display_name(frames[0].file, folder)}:{frames[0].line}" if frames else ""


def _form(node: Any) -> tuple[Any, ...]:
    return str(node.target), node.meta.get("windows"), node.meta.get("mutates")


def _numbers(node: Any) -> list[str]:
    """The numbers among a call's arguments, as texts: NaN is itself, and zeros have signs."""
    numbers: list[str] = []
    pending: list[Any] = [*node.args, *node.kwargs.values()]
    while pending:
        argument = pending.pop()
        if isinstance(argument, (list, tuple)):
            pending.extend(argument)
        elif isinstance(argument, (int, float, complex)):
            numbers.append(repr(argument))
        elif isinstance(argument, NumberFormula):
            numbers.append(repr(argument.expression))
    return numbers
