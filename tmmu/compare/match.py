"""Which ops and buffers of one planned graph are which of another, when the model was edited in between.

Ops are aligned in the order in which they run, in four rounds of ever looser descriptions: first stage, module,
operator, result and the origin of the arguments, at last stage, operator and result, for modules that were renamed.
Each round aligns only inside the gaps that the rounds before left, so a closer description always wins. What is left is
matched by stage, module and operator wherever it runs.

Parameters, constants and state are matched by name; names that one side alone has, by role, size and last component of
the name, in order. Buffers that ops make are matched by the op that makes them and by their rank among its results.

Invariants: no op and no buffer is in two pairs; the pairs of ``ops`` ascend on both sides, those of ``moved`` do not.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TypeAlias

from tmmu.compare.align import Pair, align
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.ids import BufferId, OpId
from tmmu.ir.plan import Plan
from tmmu.ir.windows import writers

BufferPair: TypeAlias = tuple[BufferId, BufferId]
"""(buffer before, buffer after)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGraph:
    """A graph and a plan of it."""

    graph: Graph
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """``ops``: pairs of positions, ascending in both. ``moved``: further pairs, in another order. Buffers by id."""

    ops: tuple[Pair, ...]
    moved: tuple[Pair, ...]
    buffers: tuple[BufferPair, ...]


def match_graphs(before: PlannedGraph, after: PlannedGraph) -> Matching:
    """The ops and placed buffers that both have. O(N log N) for programs that are much alike."""
    pairs: list[Pair] = []
    sizes = len(before.plan.order), len(after.plan.order)
    for old, new in zip(_descriptions(before), _descriptions(after), strict=True):
        pairs = _align_gaps(pairs, sizes, *_intern(old, new))
    moved = _match_moved_ops(before, after, pairs)
    buffers = [*_match_persistent(before, after), *_match_results(before, after, [*pairs, *moved])]
    return Matching(ops=tuple(pairs), moved=tuple(moved), buffers=tuple(sorted(buffers)))


def _descriptions(side: PlannedGraph) -> Iterator[list[Hashable]]:
    """Per op in the order it runs, what identifies it: from the closest description to the loosest that is trusted."""
    ops, notes = side.graph.ops, side.graph.notes.ops
    base = [(ops.stage[op], notes.module[op], ops.target[op]) for op in side.plan.order]
    results = [_first_result(side.graph, op) for op in side.plan.order]
    origin = _origins(side.graph)
    reads = [tuple(origin[value] for value in ops.reads[op]) for op in side.plan.order]
    yield list(zip(base, results, reads, strict=True))
    yield list(zip(base, results, strict=True))
    yield list(base)
    yield [(stage, target, result) for (stage, _, target), result in zip(base, results, strict=True)]


def _first_result(graph: Graph, op: OpId) -> Hashable:
    """Shape and dtype of the first value that the op writes."""
    return next(((graph.values.shape[v], graph.values.dtype[v]) for v in graph.ops.writes[op]), None)


def _origins(graph: Graph) -> list[Hashable]:
    """Per value, the module and operator that write it, or its buffer's name."""
    notes, target, buffer_of = graph.notes, graph.ops.target, graph.values.buffer
    return [
        (notes.ops.module[op], target[op]) if op >= 0 else notes.buffers[buffer_of[value]]
        for value, op in enumerate(writers(graph))
    ]


def _intern(before: Iterable[Hashable], after: Iterable[Hashable]) -> tuple[list[int], list[int]]:
    """Descriptions as numbers, equal where the descriptions are."""
    number: dict[Hashable, int] = {}
    old, new = ([number.setdefault(x, len(number)) for x in descriptions] for descriptions in (before, after))
    return old, new


def _align_gaps(pairs: Sequence[Pair], sizes: Pair, before: Sequence[int], after: Sequence[int]) -> list[Pair]:
    """The pairs, and those that an alignment adds in the gaps between them."""
    refined: list[Pair] = []
    low = start = 0
    for i, j in [*pairs, sizes]:
        if low < i and start < j:
            refined += [(low + x, start + y) for x, y in align(before[low:i], after[start:j])]
        refined.append((i, j))
        low, start = i + 1, j + 1
    return refined[:-1]


def _match_moved_ops(before: PlannedGraph, after: PlannedGraph, pairs: Sequence[Pair]) -> list[Pair]:
    """Of the ops without a pair: the n-th of a stage, module and operator with the n-th of the same."""
    candidates: dict[Hashable, list[int]] = defaultdict(list)
    for i, key in _unpaired_ops(before, {i for i, _ in pairs}):
        candidates[key].append(i)
    queues = {key: iter(positions) for key, positions in candidates.items()}
    unpaired = _unpaired_ops(after, {j for _, j in pairs})
    moved = ((next(queues.get(key, iter(())), -1), j) for j, key in unpaired)
    return [(i, j) for i, j in moved if i >= 0]


def _unpaired_ops(side: PlannedGraph, paired: set[int]) -> Iterator[tuple[int, Hashable]]:
    """(position, (stage, module, operator)) of the ops at positions that are not in ``paired``."""
    ops, notes = side.graph.ops, side.graph.notes.ops
    for position, op in enumerate(side.plan.order):
        if position not in paired:
            yield position, (ops.stage[op], notes.module[op], ops.target[op])


def _match_persistent(before: PlannedGraph, after: PlannedGraph) -> list[BufferPair]:
    """Persistent buffers of one name (the n-th of a name where several have it), then those that were renamed."""
    old_names, new_names = dict(_persistent_names(before)), dict(_persistent_names(after))
    pairs = [(old_names[key], buffer) for key, buffer in new_names.items() if key in old_names]
    old = [buffer for key, buffer in old_names.items() if key not in new_names]
    new = [buffer for key, buffer in new_names.items() if key not in old_names]
    old_keys, new_keys = (_rename_keys(side.graph, ids) for side, ids in ((before, old), (after, new)))
    return pairs + [(old[i], new[j]) for i, j in align(*_intern(old_keys, new_keys))]


def _persistent_names(side: PlannedGraph) -> Iterator[tuple[Hashable, BufferId]]:
    """((name, how many had it before), buffer) of each persistent buffer."""
    buffers, names = side.graph.buffers, side.graph.notes.buffers
    count: dict[str, int] = defaultdict(int)
    for buffer, role in zip(buffers.ids, buffers.role, strict=True):
        if role in PERSISTENT_ROLES:
            yield (names[buffer], count[names[buffer]]), buffer
            count[names[buffer]] += 1


def _rename_keys(graph: Graph, buffers: Iterable[BufferId]) -> list[Hashable]:
    """Per buffer, what stays the same when a module is renamed."""
    roles, sizes, names = graph.buffers.role, graph.buffers.bytes, graph.notes.buffers
    return [(roles[buffer], sizes[buffer], names[buffer].rpartition(".")[2]) for buffer in buffers]


def _match_results(before: PlannedGraph, after: PlannedGraph, pairs: Iterable[Pair]) -> Iterator[BufferPair]:
    """What matched ops make: the n-th result with the n-th."""
    old, new = _new_buffers(before), _new_buffers(after)
    return chain.from_iterable(zip(old.get(i, ()), new.get(j, ()), strict=False) for i, j in pairs)


def _new_buffers(side: PlannedGraph) -> Mapping[int, Sequence[BufferId]]:
    """Per position, the buffers that are born there, in the order of the op's results."""
    graph, plan = side.graph, side.plan
    roles, buffer_of = graph.buffers.role, graph.values.buffer
    birth = {b: t for b, t in zip(plan.buffers.id, plan.buffers.birth, strict=True) if roles[b] not in PERSISTENT_ROLES}
    written = (zip(repeat(t), graph.ops.writes[op], strict=False) for t, op in enumerate(plan.order))
    results: dict[int, dict[BufferId, None]] = defaultdict(dict)
    for t, value in chain.from_iterable(written):
        if birth.get(buffer_of[value]) == t:
            results[t][buffer_of[value]] = None
    return {t: tuple(buffers) for t, buffers in results.items()}
