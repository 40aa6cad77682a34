"""Which ops and buffers of one planned graph are which of another, when the model in between was edited.

Parameters, constants and state are matched by name; where names are new, by role, size and what follows the last dot,
in order. Ops are aligned in the order in which they run, by ever looser
descriptions: first stage, module, operator, result and where the arguments come from, at last stage, operator and
result, for modules that were renamed; what is left over is matched by module and operator wherever it runs. Buffers
that ops make are matched by the op that makes them and their place among its results.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from tmmu.compare.align import Pair, align
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.plan import Plan
from tmmu.ir.windows import writers


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A graph and a plan of it."""

    graph: Graph
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """``ops``: pairs of positions, ascending in both. ``moved``: further pairs, in another order. Buffers by id."""

    ops: tuple[Pair, ...]
    moved: tuple[Pair, ...]
    buffers: tuple[Pair, ...]


def match(before: Planned, after: Planned) -> Matching:
    """The ops and placed buffers that both have. O(N log N) for programs that are much alike."""
    pairs: list[Pair] = []
    sizes = len(before.plan.order), len(after.plan.order)
    for one, other in zip(_descriptions(before), _descriptions(after), strict=True):
        pairs = _refine(pairs, sizes, *_interned(one, other))
    moved = _moved(before, after, pairs)
    named = _named(before, after)
    made = _made(before, after, [*pairs, *moved])
    return Matching(ops=tuple(pairs), moved=tuple(moved), buffers=tuple(sorted([*named, *made])))


def _descriptions(one: Planned) -> Iterator[list[Hashable]]:
    """Per op in the order it runs, what it is: from the closest description to the loosest that is trusted."""
    ops, notes = one.graph.ops, one.graph.notes.ops
    base = [(ops.stage[op], notes.module[op], ops.target[op]) for op in one.plan.order]
    made = [_result(one.graph, op) for op in one.plan.order]
    origin = _origins(one.graph)
    reads = [tuple(origin[value] for value in ops.reads[op]) for op in one.plan.order]
    yield list(zip(base, made, reads, strict=True))
    yield list(zip(base, made, strict=True))
    yield list(base)
    yield [(stage, target, result) for (stage, _, target), result in zip(base, made, strict=True)]


def _result(graph: Graph, op: int) -> Hashable:
    """Shape and type of what an op makes first."""
    return next(((graph.values.shape[v], graph.values.dtype[v]) for v in graph.ops.writes[op]), None)


def _origins(graph: Graph) -> list[Hashable]:
    """Per value, where it comes from: its buffer's name, or the module and operator that write it."""
    notes, target, home = graph.notes, graph.ops.target, graph.values.buffer
    return [
        (notes.ops.module[op], target[op]) if op >= 0 else notes.buffers[home[value]]
        for value, op in enumerate(writers(graph))
    ]


def _interned(one: Iterable[Hashable], other: Iterable[Hashable]) -> tuple[list[int], list[int]]:
    """Descriptions as numbers: equal where they are."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(x, len(number)) for x in one], [number.setdefault(x, len(number)) for x in other]


def _refine(pairs: Sequence[Pair], sizes: Pair, one: Sequence[int], other: Sequence[int]) -> list[Pair]:
    """The pairs, and those that an alignment finds in the gaps between them."""
    found: list[Pair] = []
    low = start = 0
    for i, j in [*pairs, sizes]:
        if low < i and start < j:
            found += [(low + x, start + y) for x, y in align(one[low:i], other[start:j])]
        found.append((i, j))
        low, start = i + 1, j + 1
    return found[:-1]


def _moved(before: Planned, after: Planned, pairs: Sequence[Pair]) -> list[Pair]:
    """Ops left over on both sides that have one stage, module and operator: the n-th is the n-th."""
    left: dict[Hashable, list[int]] = defaultdict(list)
    ops, notes = before.graph.ops, before.graph.notes.ops
    taken = {i for i, _ in pairs}
    for position, op in enumerate(before.plan.order):
        if position not in taken:
            left[ops.stage[op], notes.module[op], ops.target[op]].append(position)
    waiting = {key: iter(positions) for key, positions in left.items()}
    ops, notes = after.graph.ops, after.graph.notes.ops
    taken = {j for _, j in pairs}
    rest = ((j, op) for j, op in enumerate(after.plan.order) if j not in taken)
    keyed = ((j, waiting.get((ops.stage[op], notes.module[op], ops.target[op]), iter(()))) for j, op in rest)
    found = ((next(positions, -1), j) for j, positions in keyed)
    return [(i, j) for i, j in found if i >= 0]


def _named(before: Planned, after: Planned) -> list[Pair]:
    """Persistent buffers of one name (the n-th of a name where several have it), then those that were renamed."""
    one, other = dict(_names(before)), dict(_names(after))
    pairs = [(one[key], buffer) for key, buffer in other.items() if key in one]
    old = [buffer for key, buffer in one.items() if key not in other]
    new = [buffer for key, buffer in other.items() if key not in one]
    renamed = align(*_interned([_kind(before.graph, b) for b in old], [_kind(after.graph, b) for b in new]))
    return pairs + [(old[i], new[j]) for i, j in renamed]


def _names(one: Planned) -> Iterator[tuple[Hashable, int]]:
    roles, names = one.graph.buffers.role, one.graph.notes.buffers
    seen: dict[str, int] = defaultdict(int)
    for buffer, role in enumerate(roles):
        if role in PERSISTENT_ROLES:
            yield (names[buffer], seen[names[buffer]]), buffer
            seen[names[buffer]] += 1


def _kind(graph: Graph, buffer: int) -> Hashable:
    """What stays when a module is renamed."""
    return graph.buffers.role[buffer], graph.buffers.bytes[buffer], graph.notes.buffers[buffer].rpartition(".")[2]


def _made(before: Planned, after: Planned, pairs: Iterable[Pair]) -> Iterator[Pair]:
    """What matched ops make, the n-th with the n-th."""
    one, other = _births(before), _births(after)
    return chain.from_iterable(zip(one.get(i, ()), other.get(j, ()), strict=False) for i, j in pairs)


def _births(one: Planned) -> Mapping[int, Sequence[int]]:
    """Per position, the buffers that are placed there for the first time, in the order of the op's results."""
    graph, plan = one.graph, one.plan
    roles, home = graph.buffers.role, graph.values.buffer
    born = {b: t for b, t in zip(plan.buffers.id, plan.buffers.birth, strict=True) if roles[b] not in PERSISTENT_ROLES}
    written = (zip(repeat(t), graph.ops.writes[op], strict=False) for t, op in enumerate(plan.order))
    found: dict[int, dict[int, None]] = defaultdict(dict)
    for t, value in chain.from_iterable(written):
        if born.get(home[value]) == t:
            found[t][home[value]] = None
    return {t: tuple(buffers) for t, buffers in found.items()}
