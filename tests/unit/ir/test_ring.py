"""A ring in its file: the same after reading, nothing else accepted, older plans unchanged."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from blake3 import blake3

from tests.layered import layered_graph, plan_graph
from tmmu.codec.read import read_plan
from tmmu.codec.text import print_plan
from tmmu.errors import PlanCorrupt
from tmmu.ir.encoding import cbor
from tmmu.ir.plan import Plan, encode_plan
from tmmu.ir.ring import Ring, ring_map
from tmmu.planner.ring.prepare import RingRequest, prepare_ring

GRAPH = layered_graph((512, 1024, 512, 768, 512, 1024), tied=256)
PLAIN = plan_graph(GRAPH)
PLAN = prepare_ring(GRAPH, PLAIN, RingRequest(capacity=2304))


def ring_of(plan: Plan) -> Ring:
    assert plan.ring
    return plan.ring


def file(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The plan's file with its ring's map changed, its digest put right."""
    top = cbor2.loads(encode_plan(PLAN))
    change(top["ring"])
    top.pop("digest")
    return cbor.encode(top | {"digest": blake3(cbor.encode(top)).digest()})


def test_ring_is_the_same_after_reading() -> None:
    assert read_plan(encode_plan(PLAN)) == PLAN
    assert read_plan(encode_plan(PLAN)).ring == PLAN.ring


def test_digest_covers_the_ring() -> None:
    changed = replace(PLAN, ring=replace(ring_of(PLAN), depth=ring_of(PLAN).depth + 1))
    assert len({PLAIN.digest, PLAN.digest, changed.digest}) == 3
    data = cbor2.loads(encode_plan(PLAN))
    data["ring"]["depth"] += 1
    with pytest.raises(PlanCorrupt, match="digest"):
        read_plan(cbor.encode(data))


def test_plan_without_a_ring_has_no_such_key() -> None:
    assert "ring" not in cbor2.loads(encode_plan(PLAIN))
    assert read_plan(encode_plan(PLAIN)).ring is None


def test_empty_ring_is_read() -> None:
    empty = Ring(policy="cyclic", capacity=0, alignment=64, depth=0, blocks=(), visits=(), copies=())
    plan = replace(PLAIN, ring=empty)
    assert read_plan(encode_plan(plan)) == plan
    assert (empty.bytes, empty.model_bytes, empty.bytes_per_pass, empty.host_offsets) == (0, 0, 0, ())


def test_ring_sums_its_blocks() -> None:
    ring = ring_of(PLAN)
    moved = [block.bytes for block in ring.blocks if not block.resident]
    assert moved
    assert ring.bytes_per_pass == sum(moved)
    assert ring.resident_bytes + sum(moved) == ring.model_bytes == 4608
    assert ring.bytes == max(block.address + block.bytes for block in ring.blocks) <= ring.capacity
    assert ring.host_offsets == (0, 256, 768, 1792, 2304, 3072, 3584)


def test_ring_map_has_columns() -> None:
    columns = ring_map(ring_of(PLAN))
    blocks = columns["blocks"]
    assert isinstance(blocks, dict)
    assert {len(column) for column in blocks.values()} == {7}


def test_ring_prints_a_line_per_block_visit_and_copy() -> None:
    lines = print_plan(PLAN).splitlines()[len(print_plan(PLAIN).splitlines()) :]
    ring = ring_of(PLAN)
    assert len(lines) == 1 + len(ring.blocks) + len(ring.visits) + len(ring.copies)
    assert lines[0] == f"ring cyclic capacity 2304 alignment 64 depth {ring.depth}"
    assert lines[1] == 'block 0 "embed +1" 0+256 resident b1+0'
    assert lines[8] == "visit 0 block 0 ops 0-0"
    copy = ring.copies[0]
    waits = " ".join(f"{wait.visit}-{wait.lag}" for wait in copy.waits)
    assert lines[16] == f"copy {copy.visit} start {copy.start.visit}-{copy.start.lag} waits {waits}"


BROKEN: tuple[tuple[str, Callable[[dict[str, Any]], object]], ...] = (
    ("ring: lacks the key 'depth'", lambda ring: ring.pop("depth")),
    ("ring: has the unknown key 'colour'", lambda ring: ring.update(colour=1)),
    ("ring.version: is 0, not a version", lambda ring: ring.update(version=0)),
    ("ring.version: is 2, newer than", lambda ring: ring.update(version=2)),
    ("ring.version: is True, not a version", lambda ring: ring.update(version=True)),
    ("ring.policy: is a int", lambda ring: ring.update(policy=1)),
    ("policy 'lucky' is none of", lambda ring: ring.update(policy="lucky")),
    ("ring: leaves the unsigned", lambda ring: ring.update(capacity=-1)),
    ("ring: holds str", lambda ring: ring.update(depth="1")),
    ("alignment 3 is no power of two", lambda ring: ring.update(alignment=3)),
    ("alignment 0 is no power of two", lambda ring: ring.update(alignment=0)),
    ("ring.blocks: lacks the key 'name'", lambda ring: ring["blocks"].pop("name")),
    ("ring.blocks.resident: holds int", lambda ring: ring["blocks"]["resident"].__setitem__(0, 1)),
    ("ring.blocks: has columns of unequal length", lambda ring: ring["blocks"]["bytes"].pop()),
    ("ring.blocks: has columns of unequal length", lambda ring: ring["blocks"]["offset"][1].pop()),
    ("ring.visits: has columns of unequal length", lambda ring: ring["visits"]["last"].pop()),
    ("ring.copies: has columns of unequal length", lambda ring: ring["copies"]["start"].pop()),
    ("ring.copies.start: holds what is not a pair", lambda ring: ring["copies"]["start"][0].append(1)),
    ("ring.copies.waits: holds what is not a pair", lambda ring: ring["copies"]["waits"][0][0].pop()),
    ("there is block 99, of 7", lambda ring: ring["visits"]["block"].__setitem__(0, 99)),
    ("there is visit 99, of 8", lambda ring: ring["copies"]["visit"].__setitem__(0, 99)),
    ("there is visit 99, of 8", lambda ring: ring["copies"]["waits"][0][0].__setitem__(0, 99)),
    ("there is lag 2, of 2", lambda ring: ring["copies"]["waits"][0][0].__setitem__(1, 2)),
    ("there is lag 2, of 2", lambda ring: ring["copies"]["start"][0].__setitem__(1, 2)),
)


@pytest.mark.parametrize(("says", "change"), BROKEN, ids=[says for says, _ in BROKEN])
def test_malformed_rings_are_refused(says: str, change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(PlanCorrupt) as refused:
        read_plan(file(change))
    assert says in refused.value.what


@pytest.mark.parametrize("value", [[], None, 7, "ring"])
def test_ring_that_is_no_map_is_refused(value: object) -> None:
    top = cbor2.loads(encode_plan(PLAN)) | {"ring": value}
    with pytest.raises(PlanCorrupt, match="ring: is a"):
        read_plan(cbor.encode(top))
