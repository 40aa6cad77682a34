"""Sizes between traced ones: where every number of a step lies on a line, the others are read off it.

The line goes through the least and the largest size, and a third trace between them has to lie on it. So each size that
is read off is between two that were traced, and nothing is predicted beyond them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tmmu.ir.graph import Graph
from tmmu.planner.sizes.size_model import NotPolynomialError, SizeModel, same_memory

LEAST_SIZES: Final = 4
"""Of fewer sizes each is traced: a line takes three."""
MOST_ENDS: Final = 3
"""So many of the least sizes are tried as an end of the line: of 1 and 2 kernels may be others."""


@dataclass(frozen=True, slots=True)
class SizeLine:
    """Legal graphs at three sizes on one line: ``model`` goes through the first and the last of ``sizes``."""

    model: SizeModel
    sizes: tuple[int, int, int]

    def graph_at(self, size: int) -> Graph:
        """The graph at a size between, with eager's lifetimes; ``NotPolynomialError`` for halves and beyond the ends.

        Numbers of calls that are not whole are those of a trace: the graph is there to be planned, not to be run.
        """
        if not self.sizes[0] <= size <= self.sizes[-1]:
            raise NotPolynomialError
        return _graph_at(self.model, size)


def find_size_line(sizes: Sequence[int], trace: Callable[[int], Graph | None]) -> SizeLine | None:
    """A line from the largest size down to one of the ``MOST_ENDS`` least; ``None`` where no size is saved by one.

    ``trace``: the graph at a size, ``None`` for one that is refused; it is asked for a size once. Of n sizes on one
    line three are traced, and one more for each of the least that is not on it, such as 1.
    """
    rising = sorted(set(sizes))
    traces: dict[int, Graph | None] = {}

    def trace_once(size: int) -> Graph | None:
        if size not in traces:
            traces[size] = trace(size)
        return traces[size]

    for start in range(min(MOST_ENDS, len(rising) - LEAST_SIZES + 1)):
        low, *between, high = rising[start:]
        middle = next((size for size in between if size in traces), between[(len(between) - 1) // 2])
        line = _line_through((low, middle, high), trace_once)
        if line is not None:
            return line
    return None


def _line_through(sizes: tuple[int, int, int], trace_once: Callable[[int], Graph | None]) -> SizeLine | None:
    low, middle, high = sizes
    first, last = trace_once(low), trace_once(high)
    if first is None or last is None:
        return None
    model = SizeModel(((low, first), (high, last)))
    between = trace_once(middle)
    try:
        is_on_line = between is not None and _is_same_step(_graph_at(model, middle), between)
    except NotPolynomialError:
        is_on_line = False
    return SizeLine(model, sizes) if is_on_line else None


def _graph_at(model: SizeModel, size: int) -> Graph:
    graph = model.graph_at(size)
    return replace(graph, notes=replace(graph.notes, eager=model.eager_at(size)))


def _is_same_step(first: Graph, second: Graph) -> bool:
    """Whether two graphs have the same memory, the same FLOPs, and are the same in eager."""
    notes = first.notes, second.notes
    return (
        same_memory(first, second)
        and notes[0].ops.flops == notes[1].ops.flops
        and notes[0].eager == notes[1].eager
    )  # fmt: skip
