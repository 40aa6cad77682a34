"""The planner's pipeline: order, liveness, coalescing, slots, placement, addresses, metrics; from graph to plan."""

from collections.abc import Sequence
from typing import Final, cast

from tmmu.errors import AllocationOverflow, ArenaTooSmall, InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId
from tmmu.ir.plan import JOINT, MODES, PRESETS, ArenaSpec, Plan, segment_bytes, slabs_of
from tmmu.ir.problem import Placement, Problem
from tmmu.planner.arenas import ARENAS, NEVER_REUSED, U64_MAX, arena_of_role, check_arenas, readable_size
from tmmu.planner.assemble import ArenaTask, BufferRows, arena_columns, buffer_columns, slot_columns
from tmmu.planner.coalesce import CoalescedItems, find_takeovers, merge_items
from tmmu.planner.joint import PlacedSlab, arena_placements, place_joint, slab_of_one
from tmmu.planner.layout import place_packed, place_sequential, place_slots
from tmmu.planner.liveness import LiveRanges, analyze_liveness
from tmmu.planner.metrics import compute_metrics, stack_metrics
from tmmu.planner.order import check_order, derive_order
from tmmu.planner.slots import SlotAssignment, assign_logical_slots, max_live, one_slot_each
from tmmu.planner.token import check_token

TOKEN_PREFIX: Final = 8


def prepare_memory(  # noqa: PLR0913 - the specification's own parameters
    graph: Graph,
    *,
    mode: str,
    preset: str,
    token: bytes,
    arenas: Sequence[ArenaSpec],
    order: Sequence[int] | None = None,
    search_nodes: int = 0,
) -> Plan:
    """A complete plan of a legal graph: ``UML_OS.TMMU.PrepareMemory_v2``.

    Every placed buffer has a slot, an address by its slot, and an offset; the plan is a function of the
    arguments alone. ``order`` defaults to the derived one; ``search_nodes`` is the node budget of the exact search,
    used where the packers miss the bound. Liveness, slots and addresses take O(N log N).
    Errors: ``INVALID_CONFIG``, ``INVALID_TOKEN``, ``ALIGNMENT_VIOLATION``, ``INVALID_IR_SHAPES``,
    ``LIVENESS_CYCLE``, ``ALLOCATION_OVERFLOW``, ``ARENA_TOO_SMALL``, ``ADDRESS_COLLISION``.
    """
    _demand_known_options(mode, preset)
    check_token(token)
    specs = check_arenas(arenas)
    steps = derive_order(graph, mode) if order is None else check_order(graph, mode, order)
    ranges = analyze_liveness(graph, steps, mode=mode, preset=preset)
    rows = _buffer_rows(graph, steps, ranges, specs, overwrite=preset != "train_full")
    items = merge_items(ranges, rows.takes_over)
    tasks = [_arena_task(spec, index, rows, items) for index, spec in enumerate(specs)]
    slabs = [
        _place_slab(slab, tasks, search_nodes)
        for slab in slabs_of([s.segment for s in specs], [s.layout for s in specs])
    ]
    placements = arena_placements(slabs)
    # Capacities are checked on the result only: a placement does not depend on them.
    for task, placement in zip(tasks, placements, strict=True):
        _demand_room(task, placement)
    columns, buffers = arena_columns(tasks, placements), buffer_columns(rows, tasks, placements)
    _demand_64_bit_stack(segment_bytes(columns, "stack"))
    return Plan(
        ir_hash=graph.ir_hash,
        mode=mode,
        preset=preset,
        token_prefix=token[:TOKEN_PREFIX],
        order=cast("tuple[OpId, ...]", steps),
        arenas=columns,
        slots=slot_columns(token, columns, tasks),
        buffers=buffers,
        metrics=compute_metrics(graph, steps, columns, buffers, sum(task.max_live for task in tasks))
        | stack_metrics(columns, slabs),
    )


def _demand_known_options(mode: str, preset: str) -> None:
    for setting, name, names in (("mode", mode, MODES), ("preset", preset, PRESETS)):
        if name not in names:
            raise InvalidConfig(f"unknown {setting} {name!r}", fix=f"use one of {', '.join(names)}", **{setting: name})


def _buffer_rows(
    graph: Graph, order: Sequence[int], ranges: LiveRanges, specs: Sequence[ArenaSpec], *, overwrite: bool
) -> BufferRows:
    index: dict[str | None, int] = {name: position for position, name in enumerate(ARENAS)}
    arena = tuple(index[arena_of_role(graph.buffers.role[buffer])] for buffer in ranges.id)
    reusable = [-1 if ARENAS[arena_index] in NEVER_REUSED else arena_index for arena_index in arena]
    return BufferRows(
        ranges=ranges,
        arena=arena,
        padded=pad_sizes(graph, ranges, arena, specs),
        takes_over=find_takeovers(graph, order, ranges, reusable, overwrite=overwrite),
    )


def pad_sizes(graph: Graph, ranges: LiveRanges, arena: Sequence[int], specs: Sequence[ArenaSpec]) -> tuple[int, ...]:
    """Per placed buffer its bytes, rounded up to its arena's alignment; ``AllocationOverflow`` past 64 bits."""
    size = graph.buffers.bytes
    mask = [spec.alignment - 1 for spec in specs]
    padded = tuple((size[b] + mask[a]) & ~mask[a] for b, a in zip(ranges.id, arena, strict=True))
    for row, total in enumerate(padded):
        if total > U64_MAX:
            raise AllocationOverflow(
                f"buffer {ranges.id[row]} of {size[ranges.id[row]]} bytes does not fit 64 bits once padded",
                fix="make the tensor smaller",
                buffer=ranges.id[row],
                bytes=size[ranges.id[row]],
            )
    return padded


def _arena_task(spec: ArenaSpec, index: int, rows: BufferRows, items: CoalescedItems) -> ArenaTask:
    arena_rows = tuple(row for row, arena_index in enumerate(rows.arena) if arena_index == index)
    arena_items = [item for item, row in enumerate(items.first_row) if rows.arena[row] == index]
    local = {item: position for position, item in enumerate(arena_items)}
    problem = Problem(
        size=tuple(rows.padded[items.first_row[item]] for item in arena_items),
        birth=tuple(items.birth[item] for item in arena_items),
        death=tuple(items.death[item] for item in arena_items),
        alignment=spec.alignment,
    )
    never_reused = spec.name in NEVER_REUSED
    return ArenaTask(
        spec=spec,
        rows=arena_rows,
        item=tuple(local[items.item_of_row[row]] for row in arena_rows),
        problem=problem,
        slots=one_slot_each(problem) if never_reused else assign_logical_slots(problem),
        max_live=len(problem) if never_reused else max_live(problem),
    )


def _place_slab(arenas: tuple[int, ...], tasks: Sequence[ArenaTask], search_nodes: int) -> PlacedSlab:
    first = tasks[arenas[0]]
    if first.spec.layout == JOINT:
        return place_joint(arenas, [tasks[arena].problem for arena in arenas], search_nodes=search_nodes)
    reuses_nothing = first.spec.name in NEVER_REUSED
    placement = _place(first.spec.layout, first.problem, first.slots, search_nodes, reuses_nothing=reuses_nothing)
    return slab_of_one(arenas[0], placement)


def _place(
    layout: str, problem: Problem, slots: SlotAssignment, search_nodes: int, *, reuses_nothing: bool
) -> Placement:
    if layout == "slots":
        return place_slots(problem, slots)
    if layout == "packed":
        return place_packed(problem, search_nodes=search_nodes)
    return place_sequential(problem, reuses_nothing=reuses_nothing)


def _demand_room(task: ArenaTask, placement: Placement) -> None:
    spec = task.spec
    if placement.peak > U64_MAX or sum(task.slots.bytes) > U64_MAX:
        raise AllocationOverflow(
            f"arena {spec.name} needs {placement.peak} bytes, more than 64 bits can count",
            fix="make the model smaller",
            arena=spec.name,
            peak=str(placement.peak),
        )
    if spec.capacity and placement.peak > spec.capacity:
        raise ArenaTooSmall(
            f"arena {spec.name} needs {_bytes(placement.peak)} and has {_bytes(spec.capacity)}: "
            f"{_bytes(placement.peak - spec.capacity)} too few; at least {_bytes(placement.bound)} are live at once",
            fix=f"give it {placement.peak} bytes, {_layout_hint(spec, placement)}or plan a smaller batch or sequence",
            arena=spec.name,
            peak=placement.peak,
            capacity=spec.capacity,
            bound=placement.bound,
            short=placement.peak - spec.capacity,
        )


def _bytes(count: int) -> str:
    return f"{count} bytes ({readable_size(count)})"


def _layout_hint(spec: ArenaSpec, placement: Placement) -> str:
    """Advice for an arena whose own bound fits: in a joint slab it may end higher than when packed alone."""
    return "lay it out alone (layout:packed), " if spec.layout == JOINT and placement.bound <= spec.capacity else ""


def _demand_64_bit_stack(stack_bytes: int) -> None:
    if stack_bytes > U64_MAX:
        raise AllocationOverflow(
            f"the stack needs {stack_bytes} bytes, more than 64 bits can count",
            fix="make the model smaller",
            peak=str(stack_bytes),
        )
