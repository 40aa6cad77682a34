"""What a ring looks like, whatever its graph means; and the ring of a plan file."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tmmu.ir.encoding.columns import bools, pairs, refuse, rows, table, text, texts, uint_columns, uints
from tmmu.ir.fault import U64_MAX, Fault
from tmmu.ir.ids import BufferId, Bytes
from tmmu.ir.ring import POLICIES, VERSION, Block, Copy, Member, Ring, Visit, VisitRef

KEYS: Final = ("version", "policy", "capacity", "alignment", "depth", "blocks", "visits", "copies")
BLOCK_KEYS: Final = ("name", "bytes", "resident", "address", "buffer", "offset")
COPY_KEYS: Final = ("visit", "start", "waits")


def ring_schema_faults(ring: Ring) -> Iterator[Fault]:
    """Words are known, numbers unsigned 64-bit integers, ids name what exists, a lag is none or one pass."""
    if ring.policy not in POLICIES:
        yield _fault(f"policy {ring.policy!r} is none of {', '.join(POLICIES)}")
    own_numbers = {"capacity": ring.capacity, "alignment": ring.alignment, "depth": ring.depth}
    for name, number in (*own_numbers.items(), *_numbers(ring)):
        if type(number) is not int or not 0 <= number <= U64_MAX:
            yield _fault(f"{name} is {number!r}, no unsigned 64-bit number")
    if type(ring.alignment) is int and (ring.alignment < 1 or ring.alignment & (ring.alignment - 1)):
        yield _fault(f"alignment {ring.alignment} is no power of two")
    refs = [ref for copy in ring.copies for ref in (copy.start, *copy.waits)]
    ids = (
        ("block", len(ring.blocks), [visit.block for visit in ring.visits]),
        ("visit", len(ring.visits), [copy.visit for copy in ring.copies] + [ref.visit for ref in refs]),
        ("lag", 2, [ref.lag for ref in refs]),
    )
    for name, count, numbers in ids:
        for number in numbers:
            if type(number) is not int or not 0 <= number < count:
                yield _fault(f"there is {name} {number!r}, of {count}")


def _numbers(ring: Ring) -> Iterator[tuple[str, object]]:
    for index, block in enumerate(ring.blocks):
        for name in ("bytes", "address"):
            yield f"{name} of block {index}", getattr(block, name)
        for member in block.members:
            yield f"a member of block {index}", member.buffer
            yield f"an offset in block {index}", member.offset
    for index, visit in enumerate(ring.visits):
        yield f"the first op of visit {index}", visit.first
        yield f"the last op of visit {index}", visit.last


def _fault(message: str) -> Fault:
    return Fault(rule="ring-form", what=message)


def parse_ring(value: object) -> Ring:
    """The ring of the key ``ring``: well formed, not yet judged; ``PlanCorrupt`` for anything else."""
    top = table(value, "ring", KEYS)
    _require_version(top["version"])
    numbers: tuple[int, ...] = uints([top["capacity"], top["alignment"], top["depth"]], "ring")
    capacity, alignment, depth = numbers
    ring = Ring(
        policy=text(top["policy"], "ring.policy"),
        capacity=capacity,
        alignment=alignment,
        depth=depth,
        blocks=_blocks(top["blocks"]),
        visits=_visits(top["visits"]),
        copies=_copies(top["copies"]),
    )
    for fault in ring_schema_faults(ring):
        refuse(fault.rule, fault.what)
    return ring


def _require_version(version: object) -> None:
    if type(version) is not int or version < 1:
        refuse("ring.version", f"is {version!r:.80}, not a version")
    if version > VERSION:
        refuse("ring.version", f"is {version}, newer than this program's {VERSION}")


def _blocks(value: object) -> tuple[Block, ...]:
    top = table(value, "ring.blocks", BLOCK_KEYS)
    readers: tuple[Callable[[object, str], tuple[Any, ...]], ...] = (texts, uints, bools, uints, rows, rows)
    columns = [read(top[name], f"ring.blocks.{name}") for read, name in zip(readers, BLOCK_KEYS, strict=True)]
    _require_equal_lengths("ring.blocks", *columns)
    for buffers, offsets in zip(*columns[-2:], strict=True):
        _require_equal_lengths("ring.blocks", buffers, offsets)
    return tuple(
        Block(name=name, bytes=size, resident=resident, address=address, members=_members(buffers, offsets))
        for name, size, resident, address, buffers, offsets in zip(*columns, strict=True)
    )


def _members(buffers: Sequence[BufferId], offsets: Sequence[Bytes]) -> tuple[Member, ...]:
    return tuple(Member(buffer=buffer, offset=offset) for buffer, offset in zip(buffers, offsets, strict=True))


def _visits(value: object) -> tuple[Visit, ...]:
    top = uint_columns(value, "ring.visits", Visit.__slots__)
    _require_equal_lengths("ring.visits", *top.values())
    columns = zip(top["block"], top["first"], top["last"], strict=True)
    return tuple(Visit(block=block, first=first, last=last) for block, first, last in columns)


def _copies(value: object) -> tuple[Copy, ...]:
    top = table(value, "ring.copies", COPY_KEYS)
    visits: tuple[int, ...] = uints(top["visit"], "ring.copies.visit")
    waits: tuple[tuple[tuple[int, int], ...], ...] = pairs(top["waits"], "ring.copies.waits")
    starts: tuple[tuple[int, int], ...] = pairs([top["start"]], "ring.copies.start")[0]
    _require_equal_lengths("ring.copies", visits, starts, waits)
    return tuple(
        Copy(visit=visit, start=_visit_ref(start), waits=tuple(map(_visit_ref, row)))
        for visit, start, row in zip(visits, starts, waits, strict=True)
    )


def _visit_ref(pair: tuple[int, int]) -> VisitRef:
    return VisitRef(visit=pair[0], lag=pair[1])


def _require_equal_lengths(key: str, *columns: Sequence[object]) -> None:
    if len(set(map(len, columns))) > 1:
        refuse(key, "has columns of unequal length")
