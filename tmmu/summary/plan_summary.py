"""The summary of a plan as values; text and JSON are renderings of a ``Summary``."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tmmu.compare.timeline import PlacedItem, live_buffers, peak_level, placed_items
from tmmu.eager.peak import EagerFigures, eager_figures
from tmmu.ir.fit import AGAIN
from tmmu.ir.graph import INPUT, Graph
from tmmu.ir.plan import JOINT, Arenas, Plan, segment_bytes, slabs_of
from tmmu.ir.rewrite import FROM_HOST, SUBLIST
from tmmu.planner.metrics import arena_reuse
from tmmu.summary.plan_contents import CallerInput, StatePart, caller_inputs, loss_text, state_parts

DEVICE_GB: Final = (8, 12, 16, 24, 40, 48, 80, 141, 192)
"""Memory of common devices in GB of 10**9 bytes, the smaller reading of the makers' figures."""

DEFAULT_RESERVE: Final = 1 << 30
"""Bytes kept free for the device context and library workspaces, which are not planned."""
UNPLANNED: Final = ("device context", "library workspaces")
COMMUNICATION: Final = ("buffers of the communication library",)
BETWEEN_RANKS: Final = ("c10d.", "_c10d_functional.", "_c10d_functional_autograd.")
"""How names of operators begin that call other ranks."""
LISTED_BUFFERS: Final = 5
STACK: Final = "stack"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaLine:
    """One arena, in bytes; ``capacity`` 0 is no limit. ``peak`` of a joint arena is its end in the slab.

    ``reuse_ppm``: 1 - slots / buffers, in parts per million.
    """

    name: str
    segment: str
    layout: str
    peak: int
    bound: int
    proven: bool
    slots: int
    capacity: int
    buffers: int
    reuse_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLine:
    """Sums over the slabs of the stack: bytes, lower bound, and whether all are proven minimal."""

    peak: int
    bound: int
    proven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBuffer:
    """A buffer that is live at the peak, and the op that writes it first. Texts are empty without a graph."""

    id: int
    bytes: int
    birth: int
    death: int
    role: str
    name: str
    op: str
    module: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The first position at which most bytes of a slab are live; ``live`` buffers, the largest of them listed.

    ``arena``: the only non-empty arena of the slab, or ``stack`` if there are several.
    """

    arena: str
    position: int
    op: str
    bytes: int
    live: int
    buffers: tuple[LiveBuffer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes by segment and in total. ``inputs`` are the caller's, outside the plan; ``None`` without a graph.

    With a ring, ``text`` is the ring's range.
    """

    text: int
    data: int
    stack: int
    inputs: int | None
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLine:
    """A ring: its policy and budget, bytes of its range, of resident weights and of all weights."""

    policy: str
    capacity: int
    bytes: int
    resident: int
    weights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FitLine:
    """What a rewritten graph's plan says of it: of which base, ops that run again or are parts of lists, and the cost.

    ``from_host``: values that go to the host and come back.

    ``flops`` and ``bytes`` (written again) are exact, ``time_ppm`` of the base's is estimated; ``budget_bytes`` is
    ``None`` where there was none.
    """

    base_hash: str
    again: int
    sublists: int
    from_host: int
    flops: int
    bytes: int
    time_ppm: int
    budget_bytes: int | None
    levers: tuple[str, ...]
    near: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a device of ``gb`` * 10**9 bytes holds total and reserve; ``left``: bytes that remain, < 0 if not."""

    gb: int
    fits: bool
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigures:
    """A run inside the plan, in bytes: the stack as planned, and with weights, state and inputs."""

    stack_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A plan in one screen; the fields are keys of the JSON output.

    ``peaks``: of the non-empty slabs of the stack, largest first. ``inputs`` and ``state`` (kinds in the data segment)
    are empty without a graph. ``loss``: the one that tmmu takes itself, ``None`` for the model's own. ``fits`` is said
    of ``planned``, ``eager_fits`` of the model as it is, empty where that is not known. ``fit``: ``None`` for a
    graph as it is. ``unplanned``: what else takes memory of the device.
    """

    model: str
    target: str
    mode: str
    preset: str
    ops: int
    buffers: int
    ir_hash: str
    digest: str
    token_prefix: str
    arenas: tuple[ArenaLine, ...]
    stack: StackLine
    peaks: tuple[Peak, ...]
    inputs: tuple[CallerInput, ...]
    memory: Memory
    ring: RingLine | None
    state: tuple[StatePart, ...]
    reserve: int
    fits: tuple[Fit, ...]
    loss: str | None
    planned: PlannedFigures
    eager: EagerFigures | None
    eager_fits: tuple[Fit, ...]
    fit: FitLine | None
    unplanned: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """One operator of a plan: calls, floating-point operations, and whether the operator table has a row for it."""

    operator: str
    calls: int
    flops: int
    known: bool


def summarize(
    plan: Plan, graph: Graph | None, *, reserve: int, listed: int | None = LISTED_BUFFERS, first_bytes: int = 0
) -> Summary:
    """The summary of ``plan``; without its ``graph``, names and the caller's inputs are left out.

    ``listed`` buffers of the peak are named, or all of them for ``None``. ``first_bytes``: what a step of the user's
    takes in its first run as it is, which has to fit too.
    """
    memory = memory_of(plan, graph)
    eager = eager_figures(graph, plan.mode) if graph else None
    return Summary(
        model=graph.notes.name if graph else "",
        target=graph.target if graph else "",
        mode=plan.mode,
        preset=plan.preset,
        ops=len(plan.order),
        buffers=len(plan.buffers),
        ir_hash=plan.ir_hash.hex(),
        digest=plan.digest.hex(),
        token_prefix=plan.token_prefix.hex(),
        arenas=arena_lines(plan),
        stack=stack_line(plan),
        peaks=stack_peaks(plan, graph, listed),
        inputs=caller_inputs(graph) if graph else (),
        memory=memory,
        ring=ring_line(plan),
        state=state_parts(plan, graph) if graph else (),
        reserve=reserve,
        fits=device_fits(memory.total + reserve),
        loss=(loss_text(graph) or None) if graph else None,
        planned=PlannedFigures(stack_bytes=memory.stack, total_bytes=memory.total),
        eager=eager,
        eager_fits=device_fits(max(eager.total_bytes, first_bytes) + reserve) if eager else (),
        fit=fit_line(plan),
        unplanned=UNPLANNED + (COMMUNICATION if graph and calls_ranks(graph) else ()),
    )


def calls_ranks(graph: Graph) -> bool:
    """Whether an op is a call between ranks."""
    return any(target.startswith(BETWEEN_RANKS) for target in graph.ops.target)


def device_fits(needed: int) -> tuple[Fit, ...]:
    """Of each device size that is listed, whether it holds so many bytes."""
    return tuple(fit(gb, needed) for gb in DEVICE_GB)


def fit(gb: int, needed: int) -> Fit:
    """Whether ``needed`` bytes fit on a device of ``gb`` GB."""
    left = gb * 10**9 - needed
    return Fit(gb=gb, fits=left >= 0, left=left)


def arena_lines(plan: Plan) -> tuple[ArenaLine, ...]:
    """One line per arena, in the plan's order."""
    arenas, reuse, counts = plan.arenas, arena_reuse(plan.arenas, plan.buffers), Counter(plan.buffers.arena)
    return tuple(
        ArenaLine(
            name=arenas.name[i],
            segment=arenas.segment[i],
            layout=arenas.layout[i],
            peak=arenas.peak[i],
            bound=arenas.bound[i],
            proven=arenas.proven[i],
            slots=arenas.slots[i],
            capacity=arenas.capacity[i],
            buffers=counts[i],
            reuse_ppm=reuse[i],
        )
        for i in range(len(arenas))
    )


def memory_of(plan: Plan, graph: Graph | None) -> Memory:
    """Bytes of slabs by segment, and of the caller's inputs."""
    by_segment = {segment: segment_bytes(plan.arenas, segment) for segment in ("text", "data", STACK)}
    if plan.ring:
        by_segment["text"] = plan.ring.bytes
    inputs = _input_bytes(graph) if graph else None
    return Memory(inputs=inputs, total=sum(by_segment.values()) + (inputs or 0), **by_segment)


def ring_line(plan: Plan) -> RingLine | None:
    """The plan's ring, or ``None``."""
    ring = plan.ring
    if ring is None:
        return None
    return RingLine(
        policy=ring.policy,
        capacity=ring.capacity,
        bytes=ring.bytes,
        resident=ring.resident_bytes,
        weights=ring.model_bytes,
    )


def fit_line(plan: Plan) -> FitLine | None:
    """What the plan says of its rewritten graph; ``None`` for a graph as it is."""
    fit = plan.fit
    if fit is None:
        return None
    kinds = Counter(fit.rewrite.kind)
    return FitLine(
        base_hash=fit.rewrite.base_hash.hex(),
        again=sum(kinds[kind] for kind in AGAIN),
        sublists=kinds[SUBLIST],
        from_host=kinds[FROM_HOST],
        flops=fit.cost.flops,
        bytes=fit.cost.bytes,
        time_ppm=fit.cost.time_ppm,
        budget_bytes=fit.budget_bytes,
        levers=fit.levers,
        near=fit.near,
    )


def _input_bytes(graph: Graph) -> int:
    return sum(size for size, role in zip(graph.buffers.bytes, graph.buffers.role, strict=True) if role == INPUT)


def _slabs(arenas: Arenas) -> Iterator[tuple[int, ...]]:
    """The slabs of the stack, each as its arenas."""
    return (slab for slab in slabs_of(arenas.segment, arenas.layout) if arenas.segment[slab[0]] == STACK)


def stack_line(plan: Plan) -> StackLine:
    """Peak, bound and proof of the whole stack, from the tables, since the metrics may not have been judged."""
    arenas = plan.arenas
    slabs = tuple(_slabs(arenas))
    return StackLine(
        peak=segment_bytes(arenas, STACK),
        bound=sum(_slab_bound(plan, slab) for slab in slabs),
        proven=all(arenas.proven[arena] for slab in slabs for arena in slab),
    )


def _slab_bound(plan: Plan, slab: tuple[int, ...]) -> int:
    """The bound of a single arena; for joint arenas, the most bytes that all have live at once."""
    if plan.arenas.layout[slab[0]] != JOINT:
        return plan.arenas.bound[slab[0]]
    return peak_level(tuple(placed_items(plan, slab)))[1]


def stack_peaks(plan: Plan, graph: Graph | None, listed: int | None) -> tuple[Peak, ...]:
    """The peak of each non-empty slab of the stack, largest first. A buffer in place of another counts once."""
    slabs = (tuple(placed_items(plan, slab)) for slab in _slabs(plan.arenas))
    peaks = (_peak(plan, graph, arena_ids, listed) for arena_ids in slabs if arena_ids)
    return tuple(sorted(peaks, key=lambda peak: -peak.bytes))


def _peak(plan: Plan, graph: Graph | None, slab: tuple[PlacedItem, ...], listed: int | None) -> Peak:
    arena_ids = sorted({plan.buffers.arena[place.rows[0]] for place in slab})
    position, size = peak_level(slab)
    row_of = {buffer: row for row, buffer in enumerate(plan.buffers.id)}
    rows = [row_of[buffer] for buffer in live_buffers(plan, slab, position)]
    rows.sort(key=lambda row: (-plan.buffers.bytes[row], plan.buffers.id[row]))
    return Peak(
        arena=plan.arenas.name[arena_ids[0]] if len(arena_ids) == 1 else STACK,
        position=position,
        op=graph.ops.target[plan.order[position]] if graph else "",
        bytes=size,
        live=len(rows),
        buffers=tuple(live_buffer(plan, graph, row) for row in rows[:listed]),
    )


def live_buffer(plan: Plan, graph: Graph | None, row: int) -> LiveBuffer:
    """The buffer of a row of the plan, with its producer in the model."""
    placed = plan.buffers
    buffer, birth = placed.id[row], placed.birth[row]
    op = module = source = name = ""
    role = plan.arenas.name[placed.arena[row]]
    if graph is not None:
        maker = plan.order[birth]
        role, name, op = graph.buffers.role[buffer], graph.notes.buffers[buffer], graph.ops.target[maker]
        module, source = graph.notes.ops.module[maker], graph.notes.ops.source[maker]
    return LiveBuffer(
        id=buffer,
        bytes=placed.bytes[row],
        birth=birth,
        death=placed.death[row],
        role=role,
        name=name,
        op=op,
        module=module,
        source=source,
    )


def operators(graph: Graph, plan: Plan, is_known: Callable[[str], bool]) -> tuple[OperatorRow, ...]:
    """Operators of the plan, most calls first; ``is_known``: whether the operator table has a row for a name."""
    calls: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    for op in plan.order:
        name = graph.ops.target[op]
        calls[name] += 1
        flops[name] += graph.notes.ops.flops[op]
    names = sorted(calls, key=lambda name: (-calls[name], name))
    return tuple(
        OperatorRow(operator=name, calls=calls[name], flops=flops[name], known=is_known(name)) for name in names
    )
