"""Whether an op of a partial kind takes the windows that it has to take, and loses nothing where it leaves results."""

from collections.abc import Sequence

from tmmu.ir.graph import HOST
from tmmu.ir.ids import OpId, ValueId
from tmmu.ir.parts.boxes import window_of
from tmmu.ir.rewrite import FROM_HOST, HOST_KINDS, TO_HOST
from tmmu.judge.rewrite.context import RewriteContext, calls_of
from tmmu.judge.rewrite.parts import ExpectedPart, ExpectedWindow, Outcome


def part_objection(context: RewriteContext, op: OpId, expected: ExpectedPart) -> str:
    """Why the op is not the part that it says; empty where it is."""
    operands, results = calls_of(context.rewritten).operands[op], context.results(op)
    split = len(operands) - len(results)
    first = expected.is_added
    accumulators, arguments = operands[:first], operands[first:split]
    if not _takes(context, arguments, expected.sources):
        return "takes other windows than a part of"
    forms = [window_of(context.rewritten, value)[1:] for value in results]
    if forms != [outcome.window[1:] for outcome in expected.outcomes]:
        return "makes other windows than a part of"
    changed = arguments[:1] if expected.is_changed else ()
    in_place = zip(changed, results, expected.outcomes, strict=False)
    is_in_place = all(_is_in_its_place(context, *each) for each in in_place)
    if not is_in_place or not _leaves_alone(context, op, arguments[len(changed) :], results):
        return "changes more than a part of"
    reads = context.rewritten.ops.reads[op]
    kept = [value for value in reads if value not in arguments]
    grown = [
        (value, outcome)
        for value, outcome in zip(results, expected.outcomes, strict=True)
        if outcome.before is not None
    ]
    if not set(arguments) <= set(reads) or len(kept) != len(grown) or (first and kept != [*accumulators]):
        return "reads other values than a part of"
    if not all(_goes_on(context, before, *pair) for before, pair in zip(kept, grown, strict=True)):
        return "does not come right after the parts before it of"
    return ""


def host_objection(context: RewriteContext, op: OpId) -> str:
    """Why the op does not copy to the host, or back, as it says; empty where it does, and for other kinds.

    Other ops have nothing on the host: that is demanded of every graph.
    """
    kind, role, buffer_of = context.rewrite.kind[op], context.rewritten.buffers.role, context.rewritten.values.buffer
    if kind not in HOST_KINDS:
        return ""
    ends = [role[buffer_of[value]] == HOST for value in calls_of(context.rewritten).operands[op]]
    return "" if ends == [kind == FROM_HOST, kind == TO_HOST] else f"does not copy {kind.replace('_', ' ')} what is of"


def _takes(context: RewriteContext, arguments: Sequence[ValueId], sources: Sequence[ExpectedWindow]) -> bool:
    """Whether each argument is the window that it has to be."""
    return len(arguments) == len(sources) and all(
        window_of(context.rewritten, value).has_form_of(source.window)
        if source.buffer is None
        else context.holds(value, source.buffer, source.op, source.window)
        for value, source in zip(arguments, sources, strict=True)
    )


def _leaves_alone(context: RewriteContext, op: OpId, arguments: Sequence[ValueId], results: Sequence[ValueId]) -> bool:
    """Whether an op writes the buffers of its results alone, each by itself, and takes nothing from them."""
    ops, buffer_of = context.rewritten.ops, context.rewritten.values.buffer
    buffers = {buffer_of[value] for value in results}
    written = {buffer_of[value] for value in ops.writes[op]}
    taken = {buffer_of[value] for value in arguments}
    is_apart = len(buffers) == len(results) and not buffers & taken
    return is_apart and written == buffers and set(results) <= set(ops.writes[op]) and not ops.overwrites[op]


def _is_in_its_place(context: RewriteContext, before: ValueId, result: ValueId, outcome: Outcome) -> bool:
    """Whether a result is where its operand is, of which there is no more than the part, so that nothing is lost."""
    rewritten = context.rewritten
    buffer_of = rewritten.values.buffer
    claim = context.claims.get((buffer_of[before], context.writer[before]))
    is_there = buffer_of[before] == buffer_of[result] and window_of(rewritten, before) == window_of(rewritten, result)
    return is_there and claim is not None and (claim.low, claim.high) == (outcome.claim.low, outcome.claim.high)


def _goes_on(context: RewriteContext, before: ValueId, result: ValueId, outcome: Outcome) -> bool:
    """Whether a result grows what ``before`` is: all parts up to its own, and they are read, as they are kept."""
    rewritten = context.rewritten
    buffer, window = rewritten.values.buffer[result], window_of(rewritten, before)
    claim = context.claims.get((buffer, context.writer[before]))
    shift = outcome.window.offset - rewritten.values.offset[result]
    if (
        outcome.before is None
        or rewritten.values.buffer[before] != buffer
        or claim != outcome.before._replace(shift=shift)
    ):
        return False
    low, high = window.span
    if outcome.before.summed:
        return window == window_of(rewritten, result)
    return low + shift <= outcome.before.low and outcome.before.high <= high + shift
