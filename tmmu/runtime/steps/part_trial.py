"""Whether parts have the bits of the whole on a device: kernels may add in another order for another size.

For each distinct op of ``TRIED`` that a rewrite cuts, the whole is computed once on normal numbers, and one part of
each size and alignment beside it. What the judge's table has as exact is not tried. Takes the memory of one whole
result and its operands at a time, so that it comes before the slabs of a plan. State: none; the caller's random numbers
are not touched.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tmmu.ir.call_text import CallText, decode_call, encode_call
from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId
from tmmu.ir.parts.boxes import Box, TensorWindow, box_of, window_of
from tmmu.ir.parts.cut_call import cut_beside, cut_call
from tmmu.ir.parts.tables import ALIGNMENT
from tmmu.ir.program import Program, ValueRef
from tmmu.ir.rewrite import PART, PLACED, Rewrite
from tmmu.judge.rewrite.cuts import TRIED
from tmmu.runtime.kernels.code import call_results, make_instruction
from tmmu.runtime.memory.slab import Slab, has_same_bits
from tmmu.runtime.steps.trial_values import NORMAL, fill_arguments


def differing_parts(base: Program, rewrite: Rewrite, device: torch.device) -> list[OpId]:
    """The ops of the base that have a part with other bits than the whole on this device; empty where none has."""
    verdicts: dict[object, bool] = {}
    differing = []
    for op, boxes in _boxes_by_op(base.graph, rewrite).items():
        windows = tuple(map(tuple, _windows(base.graph, op)))
        key = (encode_call(_text(base.graph, op)), windows, tuple(boxes.values()))
        if key not in verdicts:
            verdicts[key] = _has_bits_of_whole(base, op, list(boxes.values()), device)
        if not verdicts[key]:
            differing.append(op)
    return differing


def trial_bytes(base: Graph, rewrite: Rewrite) -> int:
    """The most that a trial takes: operands and results of one op, whole and in parts."""

    def span(window: TensorWindow) -> int:
        low, high = window.span
        return high - low

    sizes = [[sum(map(span, windows)) for windows in _windows(base, op)] for op in _boxes_by_op(base, rewrite)]
    return max((operands + 2 * results for operands, results in sizes), default=0)


def _boxes_by_op(graph: Graph, rewrite: Rewrite) -> dict[OpId, dict[object, Box]]:
    """Of each op that is cut and tried, a box of each size and alignment of its operands."""
    found: dict[OpId, dict[object, Box]] = {}
    for op, kind, part in zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True):
        if kind not in (PART, PLACED) or graph.ops.target[op] not in TRIED:
            continue
        operands, (result, *_) = _windows(graph, op)
        box = box_of(part, result.shape)
        cut = None if box is None else cut_call(_text(graph, op), [window.shape for window in operands], box)
        if box is not None and cut is not None:
            taken = [window.narrowed(each) for window, each in zip(operands, cut.boxes, strict=True)]
            size = tuple((window.shape, window.offset % ALIGNMENT) for window in taken)
            found.setdefault(op, {}).setdefault(size, box)
    return found


def _text(graph: Graph, op: OpId) -> CallText:
    assert graph.calls is not None
    text = decode_call(graph.calls.texts[graph.calls.call[op]])
    assert text is not None  # the graph is legal
    return text


def _windows(graph: Graph, op: OpId) -> tuple[list[TensorWindow], list[TensorWindow]]:
    """Of its tensor arguments, and of its results."""
    assert graph.calls is not None
    windows = [window_of(graph, value) for value in graph.calls.operands[op]]
    split = len(windows) - sum(_text(graph, op).results)
    return windows[:split], windows[split:]


def _has_bits_of_whole(base: Program, op: OpId, boxes: Sequence[Box], device: torch.device) -> bool:
    """Whether each part is what the whole has in its box."""
    text = _text(base.graph, op)
    windows, (_, *others) = _windows(base.graph, op)
    tensors = list(_drawn(windows, device))
    whole = _results(base, op, tensors)
    for box in boxes:
        cut = cut_call(text, [window.shape for window in windows], box)
        assert cut is not None  # it was cut before
        parts = [_narrowed(tensor, each) for tensor, each in zip(tensors, cut.boxes, strict=True)]
        expected = map(_narrowed, whole, (box, *cut_beside(text, [other.shape for other in others], box)))
        if not all(map(has_same_bits, _results(base, op, parts, _numbers(text, cut.text)), expected)):
            return False
    return True


def _drawn(windows: Sequence[TensorWindow], device: torch.device) -> Iterator[torch.Tensor]:
    """Tensors of these forms, aligned as in their buffers."""
    for position, window in enumerate(windows):
        low, high = window.span
        start = low % ALIGNMENT
        slab = Slab(start + high - low, ALIGNMENT, device)
        tensor = slab.view(start, window.shape, window.stride, getattr(torch, window.dtype))
        fill_arguments([tensor], NORMAL, position, integers=False)
        yield tensor


def _narrowed(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    return tensor[tuple(slice(low, high) for low, high in box)]


def _results(
    base: Program, op: OpId, tensors: Sequence[torch.Tensor], numbers: Mapping[int, int] | None = None
) -> tuple[torch.Tensor, ...]:
    """Of the call of an op on other tensors, and with other ``numbers`` as the arguments at these places."""
    call, remaining = base.calls[op], iter(tensors)

    def bound(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [bound(each) for each in argument]
        return next(remaining) if isinstance(argument, ValueRef) else argument

    arguments = [(numbers or {}).get(place, argument) for place, argument in enumerate(call.args)]
    keywords: Mapping[str, Any] = {name: bound(argument) for name, argument in call.kwargs}
    instr = make_instruction(call.operator, tuple(map(bound, arguments)), keywords)
    results = call_results(replace(instr, switches=call.switches))
    return tuple(each for each in results if isinstance(each, torch.Tensor))


def _numbers(text: CallText, cut: CallText) -> dict[int, int]:
    """The arguments of a part that are not those of the whole: how many items it has."""
    pairs = enumerate(zip(text.arguments, cut.arguments, strict=True))
    return {place: part for place, (whole, part) in pairs if part != whole and isinstance(part, int)}
