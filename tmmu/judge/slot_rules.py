"""Rules of the table ``slots``: which item has which slot, how large slots are, and their virtual addresses."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from blake3 import blake3

from tmmu.ir.fault import Fault
from tmmu.judge.context import NEVER_REUSED, CheckContext, Item


def slots(context: CheckContext) -> Iterator[Fault]:
    """Slots are dealt out by birth, then size, then id, lowest free first; text and data never reuse one."""
    rows, name = context.plan.buffers, context.plan.arenas.name
    for index, items in enumerate(context.items):
        expected_slots = list(range(len(items))) if index in NEVER_REUSED else _assign_slots(items)
        for item, expected in zip(items, expected_slots, strict=True):
            for row in item.rows:
                if rows.slot[row] != expected:
                    message = f"buffer {rows.id[row]} is in slot {rows.slot[row]} of {name[index]}, not {expected}"
                    yield Fault(rule="slots", what=message, buffer=rows.id[row], arena=name[index])


def _assign_slots(items: Sequence[Item]) -> list[int]:
    """The slot of each item by definition (R4): the lowest that is free when the item is born."""
    slot, count = [0] * len(items), 0
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for index in sorted(range(len(items)), key=lambda i: (items[i].birth, -items[i].bytes, items[i].id)):
        while busy and busy[0][0] <= items[index].birth:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, count)
            count += 1
        slot[index] = heappop(free)
        heappush(busy, (items[index].death, slot[index]))
    return slot


def slot_sharing(context: CheckContext) -> Iterator[Fault]:
    """Two items alive at once never share a slot."""
    rows, name = context.plan.buffers, context.plan.arenas.name
    for index, items in enumerate(context.items):
        holder: dict[int, Item] = {}
        for item in sorted(items, key=lambda item: (item.birth, item.death, item.id)):
            slot = rows.slot[item.rows[0]]
            previous = holder.get(slot)
            if previous and (previous.death > item.birth or index in NEVER_REUSED):
                message = f"buffers {previous.id} and {item.id} share slot {slot} of {name[index]} at {item.birth}"
                yield Fault(rule="slot-sharing", what=message, buffer=item.id, arena=name[index])
            holder[slot] = item


def slot_count(context: CheckContext) -> Iterator[Fault]:
    """An arena has as many slots as items are alive at once; one each where nothing is reused."""
    table = context.plan.arenas
    for name, actual, expected in zip(table.name, table.slots, context.slot_counts, strict=True):
        if actual != expected:
            yield Fault(rule="slot-count", what=f"{name} has {actual} slots, not {expected}", arena=name)


def slot_bytes(context: CheckContext) -> Iterator[Fault]:
    """A slot is as large as the largest item that it ever holds."""
    table, name = context.plan.slots, context.plan.arenas.name
    for index, slot, actual in zip(table.arena, table.slot, table.bytes, strict=True):
        expected = context.slot_bytes.get((index, slot), 0)
        if actual != expected:
            message = f"slot {slot} of {name[index]} has {actual} bytes, not {expected}"
            yield Fault(rule="slot-bytes", what=message, arena=name[index])


def address(context: CheckContext) -> Iterator[Fault]:
    """Addresses are distinct and aligned, and those of the token where it is known (R1)."""
    table, arenas = context.plan.slots, context.plan.arenas
    owner: dict[int, str] = {}
    for index, slot, actual in zip(table.arena, table.slot, table.address, strict=True):
        name = arenas.name[index]
        claim = f"slot {slot} of {name} has address {actual:#x}"
        step = max(1, arenas.alignment[index])
        if actual in owner:
            yield Fault(rule="address", what=f"{claim}, as {owner[actual]} has", arena=name)
        elif actual % step:
            yield Fault(rule="address", what=f"{claim}, no multiple of {step}")
        elif context.token is not None and actual != _address(context.token, name, slot, step):
            yield Fault(rule="address", what=f"{claim}, not the token's", arena=name)
        owner.setdefault(actual, f"slot {slot} of {name}")


def _address(token: bytes, arena: str, slot: int, alignment: int) -> int:
    """The virtual address by definition (R1), low bits cleared down to the alignment."""
    name = blake3(token + b"tmmu_va" + arena.encode() + slot.to_bytes(8, "little")).digest(length=8)
    number = int.from_bytes(name, "little")
    return number - number % alignment
