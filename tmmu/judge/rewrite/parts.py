"""What an op of a partial kind has to call, read and write: classes of versions, windows, and which bytes are there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tmmu.ir.call_text import CallText
from tmmu.ir.fault import U64_MAX
from tmmu.ir.graph import Graph, OpCalls
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.parts.boxes import TensorWindow, box_of, whole, window_of
from tmmu.ir.rewrite import LIKE, LOSS, PART, PICKED, PICKED_STEPS, PLACED, ROWS, SUMMAND, WEIGHT, Part
from tmmu.judge.rewrite.cuts import CHANGING, FORM_ALONE, OF_ITEMS, SUMS, expected_cut
from tmmu.judge.rewrite.picked import picked_step

SUM_OF_PARTS: Final = "sum of parts"
NEAR_RULES: Final = {SUMMAND: SUM_OF_PARTS}
"""By kind, the name of the rule by which a rewrite of it is only near."""


class Claim(NamedTuple):
    """What a version of a buffer is: bytes ``[low, high)`` of the version that ``op`` of the base makes of ``buffer``.

    The byte at ``n`` is the base's at ``n + shift``. ``summed``: of a sum that is not whole, how far it is. Buffers
    below 0 are those of the steps of a loss (``picked.py``), by step and op.
    """

    buffer: BufferId
    op: OpId
    shift: int = 0
    low: int = 0
    high: int = U64_MAX
    summed: int = 0

    def holds(self, buffer: BufferId, op: OpId, window: TensorWindow, expected: TensorWindow) -> bool:
        """Whether a window of this version is ``expected`` of that version of the base."""
        low, high = expected.span
        same = (self.buffer, self.op) == (buffer, op) and window._replace(offset=window.offset + self.shift) == expected
        return same and (low == high or (self.low <= low and high <= self.high))


class ExpectedWindow(NamedTuple):
    """A window of a version of the base; ``buffer`` ``None``: any tensor of this form."""

    buffer: BufferId | None
    op: OpId
    window: TensorWindow

    def at(self, window: TensorWindow) -> "ExpectedWindow":
        """Another window of the version."""
        return self._replace(window=window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A result: its window in the base, and what the version is then. ``before``: what has to be there, and is kept."""

    window: TensorWindow
    claim: Claim
    before: Claim | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPart:
    """What an op of a partial kind calls; ``numbers`` are positions in the origin's row."""

    text: CallText
    numbers: tuple[int, ...]
    sources: tuple[ExpectedWindow, ...]
    outcomes: tuple[Outcome, ...]
    is_added: bool = False
    """Whether the result is what the first argument was, changed: it comes before those of ``sources``."""
    is_changed: bool = False
    """Whether the result is what the first of ``sources`` was, changed in its place."""


@dataclass(frozen=True, slots=True)
class BaseOp:
    """An op of the base, and what it takes and makes."""

    graph: Graph
    calls: OpCalls
    writer: Sequence[OpId]
    op: OpId
    text: CallText

    def source(self, value: ValueId) -> ExpectedWindow:
        """Which version a value is of, and its window."""
        return ExpectedWindow(self.graph.values.buffer[value], self.writer[value], window_of(self.graph, value))

    @property
    def arguments(self) -> list[ExpectedWindow]:
        """Of its tensor arguments."""
        operands = self.calls.operands[self.op]
        return [self.source(value) for value in operands[: len(operands) - sum(self.text.results)]]

    @property
    def results(self) -> list[ExpectedWindow]:
        """Of its results."""
        operands = self.calls.operands[self.op]
        return [self.source(value) for value in operands[len(operands) - sum(self.text.results) :]]

    @property
    def objection(self) -> str:
        """Why no part can stand for it: it changes what it is given, or more than its results."""
        buffer_of, ops = self.graph.values.buffer, self.graph.ops
        results = [result.buffer for result in self.results]
        written = {buffer_of[value] for value in ops.writes[self.op]}
        read = {buffer_of[value] for value in ops.reads[self.op]}
        is_plain = all(self.text.results) and len(set(results)) == len(results) and written == set(results)
        return "" if is_plain and not written & read else "changes what it is given"

    @property
    def is_changing(self) -> bool:
        """Whether all that it does is to change its first operand, which is its result, in its place."""
        if self.text.operator not in CHANGING or len(self.results) != 1 or not self.arguments:
            return False
        (result,), (first, *rest) = self.results, self.arguments
        written = {self.graph.values.buffer[value] for value in self.graph.ops.writes[self.op]}
        is_in_place = (first.buffer, first.window) == (result.buffer, result.window)
        return is_in_place and written == {result.buffer} and result.buffer not in {each.buffer for each in rest}


def expected_part(base: BaseOp, kind: str, part: Part) -> ExpectedPart | str:
    """What an op of this kind calls, or why no op of this kind can stand for the base's."""
    rule = {PART: _part, PLACED: _placed, SUMMAND: _summand, LIKE: _like, PICKED: _picked}[kind]
    objection = "" if kind == PART and base.is_changing else base.objection
    try:
        found = objection or rule(base, part)
    except (IndexError, ValueError):
        # A base from a file says what it likes: rules read arguments and axes by their place in the operator's schema.
        found = "is called with other arguments, or other shapes, than it takes"
    return f"{base.text.operator} {found}" if isinstance(found, str) else found


def _numbers(base: BaseOp) -> tuple[int, ...]:
    return tuple(range(base.text.numbers))


def _part(base: BaseOp, part: Part) -> ExpectedPart | str:
    """A box of the first result, in a buffer of its own."""
    return _box(base, part, is_placed=False)


def _placed(base: BaseOp, part: Part) -> ExpectedPart | str:
    """A box of the first result, right after those that are there; other results lie in buffers of their own."""
    return _box(base, part, is_placed=True)


def _box(base: BaseOp, part: Part, *, is_placed: bool) -> ExpectedPart | str:
    arguments, (result, *others) = base.arguments, base.results
    box = box_of(part, result.window.shape)
    if box is None or (base.text.operator in OF_ITEMS and box[1:] != whole(result.window.shape[1:])):
        return f"has no part {part}"
    if any(source.window.dtype.startswith("complex") for source in (*arguments, result)):
        return "has complex numbers, whose products are contracted where vectors end or not"
    cut = expected_cut(base.text, [source.window.shape for source in arguments], box)
    if isinstance(cut, str):
        return cut
    if others and cut.others is None:
        return "has several results"
    window = result.window.narrowed(box)
    beside = [other.window.narrowed(cut.others(other.window.shape)) for other in others if cut.others is not None]
    if not all(each.is_dense for each in (result.window, window, *beside)):
        return "has a part with gaps between its elements"
    taken = zip(arguments, cut.boxes, strict=True)
    starts_at = result.window.offset if is_placed else window.offset
    return ExpectedPart(
        text=cut.text,
        numbers=_numbers(base),
        sources=tuple(source.at(source.window.narrowed(each)) for source, each in taken),
        outcomes=(
            _outcome(base, result, window, starts_at=starts_at),
            *(_outcome(base, other, each, starts_at=each.offset) for other, each in zip(others, beside, strict=True)),
        ),
        is_changed=base.is_changing,
    )


def _outcome(base: BaseOp, result: ExpectedWindow, window: TensorWindow, *, starts_at: int) -> Outcome:
    """A dense window, after what of its buffer is there from ``starts_at``."""
    assert result.buffer is not None
    claim = Claim(result.buffer, base.op, low=starts_at, high=window.span[1])
    grows = window.offset > starts_at
    return Outcome(window=window, claim=claim, before=claim._replace(high=window.offset) if grows else None)


def _summand(base: BaseOp, part: Part) -> ExpectedPart | str:
    """A range of the axis that is summed over: the sum is there when the last one is."""
    arguments, (result, *_) = base.arguments, base.results
    rule, shapes = SUMS.get(base.text.operator), [source.window.shape for source in arguments]
    if rule is None or len(part) != 2 or not 0 <= part[0] < part[1] <= shapes[0][-1]:
        return f"is no sum with a part {part}"
    assert result.buffer is not None
    cut = rule(base.text, shapes, *part)
    factors = zip(arguments, cut.boxes[-len(arguments) :], strict=True)
    sources = tuple(source.at(source.window.narrowed(each)) for source, each in factors)
    finished = Claim(result.buffer, base.op)
    unfinished = finished._replace(high=0)
    claim = finished if part[1] == shapes[0][-1] else unfinished._replace(summed=part[1])
    before = unfinished._replace(summed=part[0]) if part[0] else None
    outcome = Outcome(window=result.window, claim=claim, before=before)
    return ExpectedPart(text=cut.text, numbers=(), sources=sources, outcomes=(outcome,), is_added=before is not None)


def _like(base: BaseOp, part: Part) -> ExpectedPart | str:
    """The call on another tensor of the same form, of which it asks no more."""
    if base.text.operator not in FORM_ALONE or len(base.arguments) != 1 or len(part) != 1:
        return "asks for more than the form of one tensor"
    (argument,), (result,) = base.arguments, base.results
    assert result.buffer is not None
    outcome = Outcome(window=result.window, claim=Claim(result.buffer, base.op))
    sources = (argument._replace(buffer=None),)
    return ExpectedPart(text=base.text, numbers=_numbers(base), sources=sources, outcomes=(outcome,))


def _step_buffer(step: int) -> BufferId:
    return BufferId(-1 - step)


_OTHER: Final = _step_buffer(len(PICKED_STEPS))
"""Of a result that stands for nothing."""


def _picked(base: BaseOp, part: Part) -> ExpectedPart | str:
    """A step of a loss by class; loss and total weight come of different ones."""
    arguments = base.arguments
    if len(arguments) != 2:
        return "is no loss by class"
    numbers, targets = arguments
    step = picked_step(base.text, numbers.window, targets.window, part)
    if isinstance(step, str):
        return step
    sources = [
        ExpectedWindow(_step_buffer(maker), base.op, window) if maker >= 0 else arguments[-1 - maker].at(window)
        for maker, window in step.takes
    ]
    outcomes = _results(base, part[0]) if part[0] in (WEIGHT, LOSS) else (_step_result(base, part[0], step.makes[0]),)
    return ExpectedPart(text=step.text, numbers=(), sources=tuple(sources), outcomes=outcomes)


def _step_result(base: BaseOp, step: int, window: TensorWindow) -> Outcome:
    result = ExpectedWindow(_step_buffer(step), base.op, window)
    return _outcome(base, result, window, starts_at=0 if step == ROWS else window.offset)


def _results(base: BaseOp, step: int) -> tuple[Outcome, ...]:
    """The one of loss and total weight that the step is for; the other stands for nothing."""
    outcomes = []
    for is_kept, result in zip((step == LOSS, step == WEIGHT), base.results, strict=True):
        assert result.buffer is not None
        outcomes.append(Outcome(window=result.window, claim=Claim(result.buffer if is_kept else _OTHER, base.op)))
    return tuple(outcomes)
