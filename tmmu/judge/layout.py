"""What a plan must say about its tables, by definition: places, spans, slots, addresses, arenas, metrics."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import Final

from blake3 import blake3

from tmmu.ir.fault import Fault
from tmmu.judge.context import ARENA_OF_ROLE, NEVER_REUSED, Case, Item, most

PPM: Final = 1_000_000


def placed(case: Case) -> Iterator[Fault]:
    """Exactly the buffers that need a place have one."""
    wanted, found = set(case.spans.placed), set(case.plan.buffers.id)
    for buffer in sorted(wanted ^ found):
        what = "has no place" if buffer in wanted else "has a place and needs none"
        yield Fault(rule="placed", what=f"{case.graph.buffers.role[buffer]} buffer {buffer} {what}", buffer=buffer)


def arena(case: Case) -> Iterator[Fault]:
    """A buffer is in the arena of its role."""
    rows, name = case.plan.buffers, case.plan.arenas.name
    for buffer, index in zip(rows.id, rows.arena, strict=True):
        role = case.graph.buffers.role[buffer]
        if ARENA_OF_ROLE.get(role, index) != index:
            what = f"{role} buffer {buffer} is in arena {name[index]}, not {name[ARENA_OF_ROLE[role]]}"
            yield Fault(rule="arena", what=what, buffer=buffer, arena=name[index])


def span(case: Case) -> Iterator[Fault]:
    """Births and deaths are those of the order, mode and preset."""
    rows, spans = case.plan.buffers, case.spans
    for buffer, birth, death in zip(rows.id, rows.birth, rows.death, strict=True):
        if (birth, death) != (spans.birth[buffer], spans.death[buffer]):
            what = f"buffer {buffer} lives from {spans.birth[buffer]} to {spans.death[buffer]}, not {birth} to {death}"
            yield Fault(rule="span", what=what, buffer=buffer)


def takes_over(case: Case) -> Iterator[Fault]:
    """A buffer takes over only what dies where it is born, at an op that may overwrite it, in the same place."""
    rows = case.plan.buffers
    for row, why in case.takeovers:
        if why:
            what = f"buffer {rows.id[row]} cannot take over buffer {rows.takes_over[row]}: {why}"
            yield Fault(rule="takes-over", what=what, buffer=rows.id[row])


def padding(case: Case) -> Iterator[Fault]:
    """A row's bytes are the buffer's, rounded up to the alignment."""
    rows = case.plan.buffers
    for buffer, found, wanted in zip(rows.id, rows.bytes, case.padded, strict=True):
        if found != wanted:
            yield Fault(rule="padding", what=f"buffer {buffer} takes {wanted} bytes, not {found}", buffer=buffer)


def alignment(case: Case) -> Iterator[Fault]:
    """Alignments are powers of two, one in a slab, and every offset obeys its arena's."""
    rows, table = case.plan.buffers, case.plan.arenas
    for name, step in zip(table.name, table.alignment, strict=True):
        if step < 1 or step & (step - 1):
            yield Fault(rule="alignment", what=f"alignment {step} of {name} is no power of two", arena=name)
    for first, *others in case.slabs:
        for arena in others:
            if table.alignment[arena] != table.alignment[first]:
                what = f"{table.name[arena]} shares a slab with {table.name[first]}, but not its alignment"
                yield Fault(rule="alignment", what=what, arena=table.name[arena])
    for buffer, index, offset in zip(rows.id, rows.arena, rows.offset, strict=True):
        if offset % max(1, table.alignment[index]):
            what = f"offset {offset} of buffer {buffer} is no multiple of {table.alignment[index]}"
            yield Fault(rule="alignment", what=what, buffer=buffer, arena=table.name[index])


def overlap(case: Case) -> Iterator[Fault]:
    """Two items alive at once share no byte, in one arena or in two of one slab."""
    rows = case.plan.buffers
    for slab in case.slabs:
        for one, other in _meetings(case.together(slab), rows.offset):
            low = max(rows.offset[one.rows[0]], rows.offset[other.rows[0]])
            high = min(rows.offset[item.rows[0]] + item.bytes for item in (one, other))
            name = case.plan.arenas.name[rows.arena[one.rows[0]]]
            what = f"buffers {other.id} and {one.id} share bytes {low} to {high} of {name} at {one.birth}"
            yield Fault(rule="overlap", what=what, buffer=one.id, arena=name, bytes=(low, high))


def _meetings(items: Sequence[Item], offset: Sequence[int]) -> Iterator[tuple[Item, Item]]:
    """(newer, older) pairs that overlap: each item, when it is born, against its neighbours among the living."""
    births = sorted(
        (item for item in items if item.bytes), key=lambda item: (item.birth, offset[item.rows[0]], item.id)
    )
    alive: list[tuple[int, int]] = []
    by_id = {item.id: item for item in items}
    dying: list[tuple[int, int, int]] = []
    for item in births:
        while dying and dying[0][0] <= item.birth:
            _, low, old = heappop(dying)
            del alive[bisect_left(alive, (low, old))]
        key = (offset[item.rows[0]], item.id)
        at = bisect_left(alive, key)
        if at and alive[at - 1][0] + by_id[alive[at - 1][1]].bytes > key[0]:
            yield item, by_id[alive[at - 1][1]]
        if at < len(alive) and key[0] + item.bytes > alive[at][0]:
            yield item, by_id[alive[at][1]]
        alive.insert(at, key)
        heappush(dying, (item.death, *key))


def slots(case: Case) -> Iterator[Fault]:
    """Slots are dealt out by birth, then size, then id, lowest free first; text and data never reuse one."""
    rows, name = case.plan.buffers, case.plan.arenas.name
    for index, items in enumerate(case.items):
        dealt = list(range(len(items))) if index in NEVER_REUSED else _deal(items)
        for item, wanted in zip(items, dealt, strict=True):
            for row in item.rows:
                if rows.slot[row] != wanted:
                    what = f"buffer {rows.id[row]} is in slot {rows.slot[row]} of {name[index]}, not {wanted}"
                    yield Fault(rule="slots", what=what, buffer=rows.id[row], arena=name[index])


def _deal(items: Sequence[Item]) -> list[int]:
    """The slot of each item (R4)."""
    slot, made = [0] * len(items), 0
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for at in sorted(range(len(items)), key=lambda i: (items[i].birth, -items[i].bytes, items[i].id)):
        while busy and busy[0][0] <= items[at].birth:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, made)
            made += 1
        slot[at] = heappop(free)
        heappush(busy, (items[at].death, slot[at]))
    return slot


def slot_sharing(case: Case) -> Iterator[Fault]:
    """Two items alive at once never share a slot."""
    rows, name = case.plan.buffers, case.plan.arenas.name
    for index, items in enumerate(case.items):
        last: dict[int, Item] = {}
        for item in sorted(items, key=lambda item: (item.birth, item.death, item.id)):
            slot = rows.slot[item.rows[0]]
            before = last.get(slot)
            if before and (before.death > item.birth or index in NEVER_REUSED):
                what = f"buffers {before.id} and {item.id} share slot {slot} of {name[index]} at {item.birth}"
                yield Fault(rule="slot-sharing", what=what, buffer=item.id, arena=name[index])
            last[slot] = item


def slot_count(case: Case) -> Iterator[Fault]:
    """An arena has as many slots as items are alive at once; one each where nothing is reused."""
    table = case.plan.arenas
    for name, found, wanted in zip(table.name, table.slots, _most_items(case), strict=True):
        if found != wanted:
            yield Fault(rule="slot-count", what=f"{name} has {found} slots, not {wanted}", arena=name)


def _most_items(case: Case) -> list[int]:
    return [len(items) if i in NEVER_REUSED else most(items, weigh=False) for i, items in enumerate(case.items)]


def slot_bytes(case: Case) -> Iterator[Fault]:
    """A slot is as large as the largest item that it ever holds."""
    widest = _widest(case)
    table, name = case.plan.slots, case.plan.arenas.name
    for index, slot, found in zip(table.arena, table.slot, table.bytes, strict=True):
        wanted = widest.get((index, slot), 0)
        if found != wanted:
            what = f"slot {slot} of {name[index]} has {found} bytes, not {wanted}"
            yield Fault(rule="slot-bytes", what=what, arena=name[index])


def _widest(case: Case) -> dict[tuple[int, int], int]:
    widest: dict[tuple[int, int], int] = {}
    for index, slot, size in zip(case.plan.buffers.arena, case.plan.buffers.slot, case.padded, strict=True):
        widest[index, slot] = max(size, widest.get((index, slot), 0))
    return widest


def address(case: Case) -> Iterator[Fault]:
    """Addresses are distinct and aligned, and those of the token where it is known (R1)."""
    table, arenas = case.plan.slots, case.plan.arenas
    seen: dict[int, tuple[int, int]] = {}
    for index, slot, found in zip(table.arena, table.slot, table.address, strict=True):
        where = f"slot {slot} of {arenas.name[index]}"
        step = max(1, arenas.alignment[index])
        if found in seen:
            what = f"{where} has address {found:#x}, as slot {seen[found][1]} of {arenas.name[seen[found][0]]} has"
            yield Fault(rule="address", what=what, arena=arenas.name[index])
        elif found % step:
            yield Fault(rule="address", what=f"{where} has address {found:#x}, no multiple of {step}")
        elif case.token is not None and found != _address(case.token, arenas.name[index], slot, step):
            yield Fault(
                rule="address", what=f"{where} has address {found:#x}, not the token's", arena=arenas.name[index]
            )
        seen.setdefault(found, (index, slot))


def _address(token: bytes, arena: str, slot: int, step: int) -> int:
    name = blake3(token + b"tmmu_va" + arena.encode() + slot.to_bytes(8, "little")).digest(length=8)
    number = int.from_bytes(name, "little")
    return number - number % step


def layout(case: Case) -> Iterator[Fault]:
    """``sequential`` places items one after another by id, ``slots`` one slot after another."""
    rows, arenas = case.plan.buffers, case.plan.arenas
    for index, items in enumerate(case.items):
        wanted = _offsets(case, index, items)
        for item, offset in zip(items, wanted, strict=False):
            for row in item.rows:
                if rows.offset[row] != offset:
                    what = f"buffer {rows.id[row]} is at {rows.offset[row]} of {arenas.name[index]}, not {offset}"
                    yield Fault(rule="layout", what=what, buffer=rows.id[row], arena=arenas.name[index])


def _offsets(case: Case, index: int, items: Sequence[Item]) -> list[int]:
    """Where the layout law puts each item; empty for ``packed`` and ``joint``, which have none."""
    if case.plan.arenas.layout[index] == "sequential":
        return list(accumulate((item.bytes for item in items), initial=0))[:-1]
    if case.plan.arenas.layout[index] == "slots":
        start = list(accumulate(_slot_sizes(case, index), initial=0))
        return [start[case.plan.buffers.slot[item.rows[0]]] for item in items]
    return []


def _slot_sizes(case: Case, index: int) -> list[int]:
    widest = _widest(case)
    return [widest.get((index, slot), 0) for slot in range(case.plan.arenas.slots[index])]


def peak(case: Case) -> Iterator[Fault]:
    """The peak is the end of the last byte placed; under ``slots``, of the last slot."""
    arenas = case.plan.arenas
    for index, (name, found) in enumerate(zip(arenas.name, arenas.peak, strict=True)):
        wanted = _peak(case, index)
        if found != wanted:
            yield Fault(rule="peak", what=f"the peak of {name} is {wanted}, not {found}", arena=name)


def _peak(case: Case, index: int) -> int:
    if case.plan.arenas.layout[index] == "slots":
        return sum(_slot_sizes(case, index))
    offset = case.plan.buffers.offset
    return max((offset[row] + case.padded[row] for item in case.items[index] for row in item.rows), default=0)


def bound(case: Case) -> Iterator[Fault]:
    """The bound is the most padded bytes alive at once; all of them under ``sequential``."""
    arenas = case.plan.arenas
    for index, (name, found) in enumerate(zip(arenas.name, arenas.bound, strict=True)):
        wanted = _bound(case, (index,))
        if found != wanted:
            yield Fault(rule="bound", what=f"the bound of {name} is {wanted}, not {found}", arena=name)


def _bound(case: Case, slab: Sequence[int]) -> int:
    items = case.together(slab)
    whole = case.plan.arenas.layout[slab[0]] == "sequential"
    return sum(item.bytes for item in items) if whole else most(items, weigh=True)


def proven(case: Case) -> Iterator[Fault]:
    """A peak is called minimal only where its slab's equals the slab's bound."""
    table = case.plan.arenas
    for slab in case.slabs:
        top, floor = max(table.peak[arena] for arena in slab), _bound(case, slab)
        for arena in slab:
            if table.proven[arena] and top != floor:
                name = table.name[arena]
                yield Fault(rule="proven", what=f"{name} claims a minimal peak of {top}, above {floor}", arena=name)


def capacity(case: Case) -> Iterator[Fault]:
    """No arena needs more than it may have."""
    table = case.plan.arenas
    for name, top, limit in zip(table.name, table.peak, table.capacity, strict=True):
        if limit and top > limit:
            yield Fault(rule="capacity", what=f"{name} needs {top} bytes of {limit}", arena=name)


def metrics(case: Case) -> Iterator[Fault]:
    """The metrics are those of the tables, no more and no fewer."""
    wanted, found = _metrics(case), case.plan.metrics
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            yield Fault(rule="metrics", what=f"metric {name} is {wanted.get(name)}, not {found.get(name)}")


def _metrics(case: Case) -> dict[str, int]:
    count, slots_made = len(case.plan.buffers), sum(case.plan.arenas.slots)
    exact = sum(case.graph.buffers.bytes[buffer] for buffer in case.plan.buffers.id)
    padded_sum = sum(case.padded)
    stack = [slab for slab in case.slabs if case.plan.arenas.segment[slab[0]] == "stack"]
    return {
        "peak_logical_slots": slots_made,
        "max_live": sum(_most_items(case)),
        "memory_reuse_ppm": (count - slots_made) * PPM // max(count, 1),
        "activation_retention_ppm": _retention(case),
        "internal_fragmentation_ppm": (padded_sum - exact) * PPM // max(padded_sum, 1),
        "peak_bytes.stack": sum(max(_peak(case, arena) for arena in slab) for slab in stack),
        "bound_bytes.stack": sum(_bound(case, slab) for slab in stack),
    } | {f"peak_bytes.{name}": _peak(case, index) for index, name in enumerate(case.plan.arenas.name)}


def _retention(case: Case) -> int:
    """Of the bytes of activations born in the forward part, the share still alive at its end."""
    half = sum(case.graph.ops.stage[op] == "forward" for op in case.plan.order)
    born = kept = 0
    for row, buffer in enumerate(case.plan.buffers.id):
        if case.plan.buffers.arena[row] == ARENA_OF_ROLE["activation"] and case.spans.birth[buffer] < half:
            born += case.padded[row]
            kept += case.padded[row] if case.spans.death[buffer] >= half else 0
    return kept * PPM // max(born, 1)
