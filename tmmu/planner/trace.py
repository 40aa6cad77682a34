"""Traces: the allocations of a plan as a sequence of records, for comparison by machine."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from tmmu.ir.encoding import cbor
from tmmu.ir.plan import Plan, segment_bytes
from tmmu.planner.metrics import arena_reuse

Record: TypeAlias = Mapping[str, object]


def trace_records(plan: Plan) -> Iterator[Record]:
    """One header, one record per placed buffer in id order, one summary."""
    yield _header_record(plan)
    yield from _tensor_records(plan)
    yield _summary_record(plan)


def encode_trace(plan: Plan) -> bytes:
    """The records as a CBOR sequence (RFC 8742): one deterministic item after another."""
    return b"".join(cbor.encode(record) for record in trace_records(plan))


def _header_record(plan: Plan) -> Record:
    arenas = plan.arenas
    columns = ("segment", "alignment", "page", "capacity", "layout")
    return {
        "record": "allocation_header",
        "ir_hash": plan.ir_hash,
        "mode": plan.mode,
        "preset": plan.preset,
        "replay_token_prefix": plan.token_prefix,
        "arenas": {
            name: {column: getattr(arenas, column)[index] for column in columns}
            for index, name in enumerate(arenas.name)
        },
    }


def _tensor_records(plan: Plan) -> Iterator[Record]:
    arenas, slots, buffers = plan.arenas, plan.slots, plan.buffers
    row_of_slot = {key: row for row, key in enumerate(zip(slots.arena, slots.slot, strict=True))}
    for row, buffer in enumerate(buffers.id):
        backing = row_of_slot[buffers.arena[row], buffers.slot[row]]
        yield {
            "record": "tensor",
            "tensor_id": buffer,
            "arena": arenas.name[buffers.arena[row]],
            "logical_slot": buffers.slot[row],
            "virtual_address": slots.address[backing],
            "offset": buffers.offset[row],
            "size": buffers.bytes[row],
            "live_range": [buffers.birth[row], buffers.death[row]],
            "bytes": slots.bytes[backing],
        }


def _summary_record(plan: Plan) -> Record:
    return {
        "record": "summary",
        "peak_bytes_per_arena": dict(zip(plan.arenas.name, plan.arenas.peak, strict=True)),
        "peak_bytes_of_the_stack": segment_bytes(plan.arenas, "stack"),
        "total_logical_slots": sum(plan.arenas.slots),
        "reuse_ppm": plan.metrics["memory_reuse_ppm"],
        "reuse_ppm_per_arena": dict(zip(plan.arenas.name, arena_reuse(plan.arenas, plan.buffers), strict=True)),
        "fragmentation_ppm": plan.metrics["internal_fragmentation_ppm"],
        "plan_digest": plan.digest,
    }
