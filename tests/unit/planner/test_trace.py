"""A trace: header, tensors in id order, summary, as a CBOR sequence."""

import io

import cbor2

from tests.strategies import random_graph, seeded
from tmmu.ir.encoding import cbor
from tmmu.ir.plan import Plan
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed
from tmmu.planner.trace import encode_trace, trace_records


def sample_plan() -> Plan:
    graph = random_graph(seeded(4), ops=20, joint=True)
    return prepare_memory(graph, mode="backward", preset="inference", token=token_from_seed(2), arenas=default_arenas())


def test_trace_is_header_tensors_and_summary() -> None:
    plan = sample_plan()
    records = list(trace_records(plan))
    assert [r["record"] for r in records] == ["allocation_header", *["tensor"] * len(plan.buffers), "summary"]
    assert [r["tensor_id"] for r in records[1:-1]] == list(plan.buffers.id)
    assert records[0]["ir_hash"] == plan.ir_hash
    assert records[0]["replay_token_prefix"] == token_from_seed(2)[:8]
    assert records[-1]["peak_bytes_per_arena"] == dict(zip(plan.arenas.name, plan.arenas.peak, strict=True))
    assert records[-1]["peak_bytes_of_the_stack"] == plan.metrics["peak_bytes.stack"]
    assert records[-1]["total_logical_slots"] == len(plan.slots)
    assert list(records[-1]["reuse_ppm_per_arena"]) == list(plan.arenas.name)  # type: ignore[call-overload]


def test_reuse_of_an_arena_is_of_its_own_slots_and_buffers() -> None:
    plan = sample_plan()
    summary = list(trace_records(plan))[-1]
    for index, name in enumerate(plan.arenas.name):
        buffers = plan.buffers.arena.count(index)
        expected = (buffers - plan.arenas.slots[index]) * 10**6 // buffers if buffers else 0
        assert summary["reuse_ppm_per_arena"][name] == expected  # type: ignore[index]
    assert summary["reuse_ppm_per_arena"]["parameters"] == 0  # type: ignore[index]


def test_trace_record_has_the_address_and_bytes_of_its_slot() -> None:
    plan = sample_plan()
    by_slot = dict(
        zip(
            zip((plan.arenas.name[a] for a in plan.slots.arena), plan.slots.slot, strict=True),
            zip(plan.slots.address, plan.slots.bytes, strict=True),
            strict=True,
        )
    )
    for record in list(trace_records(plan))[1:-1]:
        address, backing = by_slot[record["arena"], record["logical_slot"]]  # type: ignore[index]
        assert (record["virtual_address"], record["bytes"]) == (address, backing)


def test_trace_encoding_is_a_sequence_of_canonical_items() -> None:
    plan = sample_plan()
    data = encode_trace(plan)
    stream, items = io.BytesIO(data), []
    while stream.tell() < len(data):
        items.append(cbor2.load(stream))
    assert items == list(trace_records(plan))
    assert b"".join(cbor.encode(item) for item in items) == data
