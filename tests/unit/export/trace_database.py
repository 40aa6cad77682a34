"""A Perfetto trace, parsed by protobuf's own classes, as tables of SQLite."""

import json
import sqlite3

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

SCHEMA = """
create table track (id integer primary key, name text, parent integer, unit integer);
create table counter (track integer, time integer, value text);
create table slice (track integer, name text, begin integer, end integer, arguments text);
"""


def trace_database(content: bytes) -> sqlite3.Connection:
    """Tables ``track``, ``counter`` and ``slice``; times in nanoseconds, arguments as JSON, values as digits."""
    trace = Trace()
    trace.ParseFromString(content)
    assert trace.SerializeToString() == content, "every byte is a known field, in canonical order"
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    stacks: dict[int, list[tuple[str, int, str]]] = {}
    latest = 0
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("track_descriptor"):
            made = packet.track_descriptor
            row = (made.uuid, made.name, made.parent_uuid, made.counter.unit)
            database.execute("insert into track values (?, ?, ?, ?)", row)
            continue
        event, time = packet.track_event, packet.timestamp
        assert time >= latest, "events are in order of time"
        latest = time
        _insert(database, stacks, event, time)
    assert not any(stacks.values()), "every slice ends"
    return database


def _insert(
    database: sqlite3.Connection, stacks: dict[int, list[tuple[str, int, str]]], event: TrackEvent, time: int
) -> None:
    stack = stacks.setdefault(event.track_uuid, [])
    if event.type == TrackEvent.TYPE_COUNTER:
        is_double = event.HasField("double_counter_value")
        value = int(event.double_counter_value) if is_double else event.counter_value
        database.execute("insert into counter values (?, ?, ?)", (event.track_uuid, time, str(value)))
    elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
        assert not stack, "slices of one track do not overlap"
        arguments = {a.name: getattr(a, a.WhichOneof("value")) for a in event.debug_annotations}
        stack.append((event.name, time, json.dumps(arguments)))
    else:
        name, begin, arguments = stack.pop()
        row = (event.track_uuid, name, begin, time, arguments)
        database.execute("insert into slice values (?, ?, ?, ?, ?)", row)
