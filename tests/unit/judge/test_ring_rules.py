"""Every rule of the ring has a sound schedule that is broken in exactly that way."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.layered import layered_graph, plan_graph
from tmmu.errors import PlanUnsound
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.ir.ring import Copy, Ring, Visit, VisitRef
from tmmu.judge.check import check_plan, judge
from tmmu.judge.ring_rules import NAMES
from tmmu.planner.ring.prepare import RingRequest, prepare_ring

SIZES = (512, 1024, 512, 768, 512, 1024)
TIED, CAPACITY = 256, 256 + 2048


@cache
def graph() -> Graph:
    return layered_graph(SIZES, tied=TIED, unread=640)


@cache
def plan(policy: str = "cyclic", capacity: int = CAPACITY, depth: int = 0) -> Plan:
    return prepare_ring(graph(), plan_graph(graph()), RingRequest(capacity=capacity, policy=policy, depth=depth))


def ring(policy: str = "cyclic") -> Ring:
    schedule = plan(policy).ring
    assert schedule
    return schedule


def block(index: int, of: str = "cyclic", **changes: Any) -> Ring:
    schedule = ring(of)
    blocks = list(schedule.blocks)
    blocks[index] = replace(blocks[index], **changes)
    return replace(schedule, blocks=tuple(blocks))


def member(block_index: int, index: int, **changes: Any) -> Ring:
    members = list(ring().blocks[block_index].members)
    members[index] = replace(members[index], **changes)
    return block(block_index, members=tuple(members))


def visit(index: int, **changes: Any) -> Ring:
    visits = list(ring().visits)
    visits[index] = replace(visits[index], **changes)
    return replace(ring(), visits=tuple(visits))


def copy(index: int, of: str = "cyclic", **changes: Any) -> Ring:
    copies = list(ring(of).copies)
    copies[index] = replace(copies[index], **changes)
    return replace(ring(of), copies=tuple(copies))


def streamed_blocks(of: str = "cyclic") -> list[int]:
    return [index for index, entry in enumerate(ring(of).blocks) if not entry.resident]


def resident_blocks() -> list[int]:
    return [index for index, entry in enumerate(ring().blocks) if entry.resident]


def stays_on_the_ring() -> Ring:
    """A block that stays, moved onto one that streams."""
    return block(resident_blocks()[-1], address=ring().blocks[streamed_blocks()[0]].address)


def two_in_one_place() -> Ring:
    """Two streamed blocks that follow each other, moved onto each other; nobody waits for that."""
    entry, second = streamed_blocks("skip_end")[:2]
    return block(second, "skip_end", address=ring("skip_end").blocks[entry].address)


def overwriting_several() -> int:
    """The last such copy: the one ahead of it waits for none of its readers."""
    return max(i for i, entry in enumerate(ring("skip_end").copies) if len(entry.waits) > 1)


def streams_into_what_stays() -> Ring:
    """A streamed block that starts below one that stays, with nothing under it, and reaches into it."""
    blocks = list(block(resident_blocks()[-1], address=4096).blocks)
    blocks[streamed_blocks()[0]] = replace(blocks[streamed_blocks()[0]], address=4096 - 64)
    return replace(ring(), capacity=8192, blocks=tuple(blocks))


def oldest_first() -> Ring:
    """A copy that overwrites several blocks waits for them in the wrong order."""
    index = overwriting_several()
    return copy(index, "skip_end", waits=tuple(reversed(ring("skip_end").copies[index].waits)))


def oldest_alone() -> Ring:
    """It waits for the oldest of them and no other."""
    index = overwriting_several()
    return copy(index, "skip_end", waits=ring("skip_end").copies[index].waits[-1:])


def without_lag() -> Ring:
    """Copies of the first visits wait for readers of the same pass instead of the one before."""
    copies = tuple(replace(entry, waits=tuple(replace(w, lag=0) for w in entry.waits)) for entry in ring().copies)
    return replace(ring(), copies=copies)


def twice() -> Ring:
    """A visit shared out over two, which overlap."""
    entry = ring().visits[2]
    visits = sorted((*ring().visits, Visit(block=entry.block, first=entry.first, last=entry.first)), key=_key)
    return replace(ring(), visits=tuple(visits))


def _key(visit: Visit) -> tuple[int, int, int]:
    return visit.first, visit.last, visit.block


def early() -> Ring:
    """The last copy is issued a whole pass before the one ahead of it is."""
    copies: list[Copy] = list(ring().copies)
    copies[-1] = replace(copies[-1], start=VisitRef(visit=0, lag=1))
    return replace(ring(), copies=tuple(copies))


MUTATIONS: tuple[tuple[str, str, Callable[[], Ring]], ...] = (
    ("form", "an unknown policy", lambda: replace(ring(), policy="lucky")),
    ("form", "an alignment that is no power of two", lambda: replace(ring(), alignment=96)),
    ("form", "a number of 65 bits", lambda: replace(ring(), capacity=2**64)),
    ("form", "an address below zero", lambda: block(0, address=-64)),
    ("form", "a visit of a block that is none", lambda: visit(0, block=99)),
    ("form", "a copy for a visit that is none", lambda: copy(0, visit=99)),
    ("form", "a lag of two passes", lambda: copy(0, waits=(VisitRef(visit=0, lag=2),))),
    ("members", "a weight in no block", lambda: block(1, members=ring().blocks[1].members[:1])),
    ("members", "a weight in two blocks", lambda: block(1, members=ring().blocks[2].members)),
    ("members", "the caller's buffer in a block", lambda: member(1, 0, buffer=0)),
    ("members", "a weight that nobody reads in a block", lambda: member(1, 0, buffer=2)),
    ("members", "a buffer that is none", lambda: member(1, 0, buffer=9999)),
    ("members", "a weight past the block's end", lambda: member(1, 1, offset=ring().blocks[1].bytes)),
    ("members", "a weight between two units", lambda: member(1, 1, offset=ring().blocks[1].members[1].offset + 4)),
    ("members", "a weight over another", lambda: member(2, 1, offset=64)),
    ("blocks", "a block between two units", lambda: block(1, address=ring().blocks[1].address + 4)),
    ("blocks", "a block of nothing", lambda: block(1, bytes=0)),
    ("blocks", "a block past the capacity", lambda: replace(ring(), capacity=ring().bytes - 64)),
    ("blocks", "a block that stays under one that streams", stays_on_the_ring),
    ("blocks", "a block that streams into one that stays", streams_into_what_stays),
    ("visits", "visits out of order", lambda: replace(ring(), visits=ring().visits[::-1])),
    ("visits", "a read in no visit", lambda: visit(2, last=ring().visits[2].first)),
    ("visits", "a visit past the last op", lambda: visit(6, last=99)),
    ("visits", "a visit that starts before the first read", lambda: visit(2, first=ring().visits[2].first - 1)),
    ("visits", "a read in two visits", twice),
    ("resident", "a weight that is read twice streams", lambda: block(0, resident=False)),
    ("copies", "a copy dropped", lambda: replace(ring(), copies=ring().copies[1:])),
    ("copies", "a copy too many", lambda: replace(ring(), copies=ring().copies + ring().copies[-1:])),
    ("copies", "a copy for what stays", lambda: block(streamed_blocks()[0], resident=True)),
    (
        "starts",
        "a copy issued after its visit",
        lambda: copy(0, start=VisitRef(visit=ring().copies[0].visit + 1, lag=0)),
    ),
    ("starts", "a copy issued before its readers", lambda: copy(0, start=ring().copies[0].waits[0])),
    ("starts", "a copy issued before the one ahead of it", early),
    ("starts", "waits oldest first", oldest_first),
    ("starts", "a copy that waits for no one", lambda: copy(0, waits=())),
    ("starts", "a copy that waits for what comes after it", without_lag),
    ("lands", "a copy that waits for the oldest reader only", oldest_alone),
    ("lands", "a copy that waits for no one", lambda: copy(0, waits=())),
    ("lands", "two blocks at one place", two_in_one_place),
    ("lands", "a block that stays on the ring", stays_on_the_ring),
    ("depth", "a depth that is not kept", lambda: replace(ring(), depth=ring().depth + 1)),
    ("policy", "a slot that is not in turn", lambda: replace(ring("skip_end"), policy="slots")),
    ("policy", "a layer that crosses no end and wraps", two_in_one_place),
)


def faults(broken: Ring) -> set[str]:
    return {fault.rule for fault in check_plan(graph(), replace(plan(), ring=broken))}


@pytest.mark.parametrize("policy", ["cyclic", "skip_end", "slots", "double"])
def test_sound_rings_have_no_fault(policy: str) -> None:
    assert check_plan(graph(), plan(policy)) == ()
    assert streamed_blocks(policy)


@pytest.mark.parametrize(("rule", "_text", "broken"), MUTATIONS, ids=[f"{rule}: {text}" for rule, text, _ in MUTATIONS])
def test_each_broken_ring_breaks_its_rule(rule: str, _text: str, broken: Callable[[], Ring]) -> None:
    assert f"ring-{rule}" in faults(broken())


def test_copies_are_issued_in_the_order_of_the_link() -> None:
    """A copy that waits for an early reader may not overtake the one ahead of it, which waits for a later reader."""
    schedule = prepare_ring(graph(), plan_graph(graph()), RingRequest(capacity=CAPACITY, policy="skip_end")).ring
    assert schedule
    total = len(schedule.visits)
    starts = [entry.start.visit - entry.start.lag * total for entry in schedule.copies]
    free = [entry.waits[0].visit + 1 - entry.waits[0].lag * total for entry in schedule.copies]
    index = next(i for i, (start, least) in enumerate(zip(starts, free, strict=True)) if least < start)
    start = VisitRef(visit=free[index] % total, lag=-(free[index] // total))
    reported = check_plan(graph(), replace(plan(), ring=copy(index, "skip_end", start=start)))
    assert {fault.what for fault in reported if fault.rule == "ring-starts"} == {
        f"the copy for visit {schedule.copies[index].visit} is issued before the one ahead of it"
    }


def test_copy_that_waits_one_op_too_little_is_a_fault() -> None:
    """Layers of one op each, so that the visit before ends one op earlier."""
    single = layered_graph(SIZES)
    modules = tuple(f"h.{op}" for op in range(len(single.ops)))
    single = replace(single, notes=replace(single.notes, ops=replace(single.notes.ops, module=modules)))
    sound = prepare_ring(single, plan_graph(single), RingRequest(capacity=1536, policy="skip_end"))
    assert sound.ring
    assert check_plan(single, sound) == ()
    short = 0
    for index, entry in enumerate(sound.ring.copies):
        newest = entry.waits[0]
        if newest.visit:
            before = replace(entry, waits=(replace(newest, visit=newest.visit - 1), *entry.waits[1:]))
            copies = (*sound.ring.copies[:index], before, *sound.ring.copies[index + 1 :])
            reported = check_plan(single, replace(sound, ring=replace(sound.ring, copies=copies)))
            short += "ring-lands" in {fault.rule for fault in reported}
    assert short > len(sound.ring.copies) // 2


def test_every_rule_has_a_mutation() -> None:
    assert {f"ring-{rule}" for rule, _, _ in MUTATIONS} == set(NAMES)


def test_schema_fault_comes_alone() -> None:
    assert faults(replace(ring(), policy="lucky", depth=99)) == {"ring-form"}


def test_landing_fault_names_bytes_and_op() -> None:
    reported = [f for f in check_plan(graph(), replace(plan(), ring=oldest_alone())) if f.rule == "ring-lands"]
    assert reported
    assert all(fault.bytes and fault.by is not None for fault in reported)


def test_weight_that_is_an_output_is_resident() -> None:
    program = layered_graph(SIZES, tied=TIED)
    weight = next(v for v, b in enumerate(program.values.buffer) if program.notes.buffers[b] == "h.1.a.weight")
    program = replace(program, outputs=(*program.outputs, weight))
    sound = prepare_ring(program, plan_graph(program), RingRequest(capacity=CAPACITY))
    assert sound.ring
    assert sound.ring.blocks[2].resident
    free = tuple(replace(entry, resident=entry.resident and i != 2) for i, entry in enumerate(sound.ring.blocks))
    broken = replace(sound, ring=replace(sound.ring, blocks=free))
    assert "ring-resident" in {fault.rule for fault in check_plan(program, broken)}


def test_judge_refuses_an_unsound_ring() -> None:
    with pytest.raises(PlanUnsound, match="ring-depth"):
        judge(graph(), replace(plan(), ring=replace(ring(), depth=77)))


@pytest.mark.parametrize("policy", ["slots", "double", "skip_end", "cyclic"])
def test_streamed_blocks_of_no_bytes_are_a_fault_and_divide_nothing(policy: str) -> None:
    base = replace(ring(), policy=policy)
    empty = replace(base, blocks=tuple(b if b.resident else replace(b, bytes=0) for b in base.blocks))
    assert "ring-blocks" in faults(empty)
