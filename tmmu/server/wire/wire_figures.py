"""What a server knows of its connections over the wire, of what clients keep there, and of their graphs, as numbers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tmmu.server.engine_figures import EngineFigure
from tmmu.server.wire.session_table import SessionTable
from tmmu.server.wire.wire_door import WireDoor

if TYPE_CHECKING:
    from tmmu.server.graphs.graph_service import GraphService


def read_wire_figures(door: WireDoor, sessions: SessionTable, graphs: "GraphService | None") -> Iterator[EngineFigure]:
    """The numbers now. ``graphs``: ``None`` where clients may have no tensors, of which there are none then."""
    words = "Connections over the wire that are open."
    yield EngineFigure(name="tmmu_wire_connections", help=words, value=len(door.connections))
    counts = door.counts
    counters = {
        "tmmu_wire_connections_opened": ("Connections over the wire so far.", counts.connections),
        "tmmu_wire_requests": ("Requests over the wire.", counts.requests),
        "tmmu_wire_writes": ("Writes of frames.", counts.writes),
        "tmmu_wire_joined_frames": ("Frames that shared a write with others.", counts.joined_frames),
    }
    for name, (words, value) in counters.items():
        yield EngineFigure(name=name, help=words, value=value, is_counter=True)
    directions = {"in": (counts.frames_in, counts.bytes_in), "out": (counts.frames_out, counts.bytes_out)}
    for direction, figures in directions.items():
        for name, value in zip(("frames", "bytes"), figures, strict=True):
            words, labels = f"{name.capitalize()} over the wire.", {"direction": direction}
            yield EngineFigure(name=f"tmmu_wire_{name}", help=words, value=value, labels=labels, is_counter=True)
    words = "Refusals over the wire, of requests and of connections."
    for code, value in counts.refusals_by_code.items():
        yield EngineFigure(name="tmmu_wire_refusals", help=words, value=value, labels={"code": code}, is_counter=True)
    yield from _reference_figures(sessions, graphs)
    yield from _graph_figures(graphs)


def _reference_figures(sessions: SessionTable, graphs: "GraphService | None") -> Iterator[EngineFigure]:
    open_sessions, values = sessions.reference_counts
    alive = {"session": open_sessions, "value": values, "tensor": 0 if graphs is None else graphs.contents}
    for kind, count in alive.items():
        words = "What clients have references to, by kind."
        yield EngineFigure(name="tmmu_remote_references", help=words, value=count, labels={"kind": kind})


def _graph_figures(graphs: "GraphService | None") -> Iterator[EngineFigure]:
    runs = dict.fromkeys(("plan", "calls", "sized"), 0)
    uploads = upload_bytes = 0
    if graphs is not None:
        counts = graphs.counts
        runs = {"plan": counts.planned, "calls": counts.plain, "sized": counts.sized}
        uploads, upload_bytes = counts.uploads, counts.upload_bytes
    for way, count in runs.items():
        words = "Runs of recorded graphs: in a plan, call by call, or of one call sized by values."
        yield EngineFigure(name="tmmu_graph_runs", help=words, value=count, labels={"way": way}, is_counter=True)
    words = "Tensors that clients have uploaded."
    yield EngineFigure(name="tmmu_uploads", help=words, value=uploads, is_counter=True)
    words = "Bytes of tensors that clients have uploaded."
    yield EngineFigure(name="tmmu_upload_bytes", help=words, value=upload_bytes, is_counter=True)
