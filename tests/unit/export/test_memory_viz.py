"""Snapshots: torch's own tools read them, and their allocs and frees are those of the plan, and of eager."""

import io
import pickle
from contextlib import redirect_stdout
from typing import Any

import pytest
from torch.cuda import _memory_viz as torch_tools

from tests.unit.export.samples import hostile_graph, huge_graph, mirrored_sample, plan_of, random_sample
from tests.unit.ir.samples import described_graph, edit
from tmmu.eager.allocator import CachingAllocator
from tmmu.eager.peak import eager_figures
from tmmu.errors import InvalidConfig
from tmmu.export.memory_viz import encode_memory_viz
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

RUNS = ("planned", "eager")


def snapshot_of(graph: Graph, run: str, plan: Plan | None = None) -> Any:
    return pickle.loads(encode_memory_viz(plan or plan_of(graph), graph, run))


def replay(snapshot: Any) -> tuple[int, int]:
    """Most live bytes and the last byte used, where no two live blocks overlap and all lie in a segment made before."""
    segments: list[tuple[int, int]] = []
    live: dict[int, int] = {}
    most = end = 0
    for event in snapshot["device_traces"][0]:
        address, size = event["addr"], event["size"]
        match event["action"]:
            case "segment_alloc":
                segments.append((address, address + size))
            case "alloc":
                assert not [a for a, s in live.items() if a < address + size and address < a + s]
                assert [low for low, high in segments if low <= address and address + size <= high]
                live[address] = size
                most, end = max(most, sum(live.values())), max(end, address + size)
            case "free_completed":
                assert live.pop(address) == size
    active = [block for s in snapshot["segments"] for block in s["blocks"] if block["state"] == "active_allocated"]
    assert live == {block["address"]: block["requested_size"] for block in active}
    assert sorted(segments) == [(s["address"], s["address"] + s["total_size"]) for s in snapshot["segments"]]
    return most, end


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("make", [described_graph, hostile_graph])
def test_torch_reads_the_snapshot_with_its_own_tools(run: str, make: Any) -> None:
    snapshot = snapshot_of(make(), run)
    assert f"segments: {len(snapshot['segments'])}" in torch_tools.segsum(snapshot)
    assert f"{len(snapshot['device_traces'][0])} entries" in torch_tools.trace(snapshot)
    for page in (torch_tools.trace_plot(snapshot), torch_tools.segment_plot(snapshot)):
        assert "snapshot.pickle" in page
    lines = torch_tools.memory(snapshot, format_flamegraph=str)
    assert "active_allocated" in lines
    assert torch_tools.segments(snapshot, format_flamegraph=str).count("seg_") >= len(snapshot["segments"])
    with redirect_stdout(io.StringIO()) as printed:
        torch_tools.compare(snapshot["segments"], snapshot["segments"], format_flamegraph=str)
    assert "only_before = []" in printed.getvalue()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("layout", ["joint", "packed", "slots"])
def test_planned_allocs_are_the_stack_of_the_plan(seed: int, layout: str) -> None:
    graph = random_sample(seed)
    plan = plan_of(graph, layout=layout)
    snapshot = snapshot_of(graph, "planned", plan)
    most, end = replay(snapshot)
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == plan.metrics["peak_bytes.stack"]
    if layout == "joint":
        assert (most, end) == (plan.metrics["bound_bytes.stack"], plan.metrics["peak_bytes.stack"])
    assert torch_tools.segsum(snapshot)


def test_planned_addresses_are_offsets_in_the_slab() -> None:
    graph = described_graph()
    plan = plan_of(graph)
    allocs = [e for e in snapshot_of(graph, "planned", plan)["device_traces"][0] if e["action"] == "alloc"]
    offsets = dict(zip(plan.buffers.id, plan.buffers.offset, strict=True))
    for event in allocs:
        ids = [int(frame["name"].split()[1]) for frame in event["frames"]]
        assert {offsets[buffer] for buffer in ids} == {event["addr"]}
        assert event["time_us"] == plan.buffers.birth[plan.buffers.id.index(ids[-1])]
    stack = [b for b, arena in zip(plan.buffers.id, plan.buffers.arena, strict=True) if arena > 1]
    named = sorted(int(frame["name"].split()[1]) for event in allocs for frame in event["frames"])
    assert named == stack, "each buffer of the stack is named by one alloc, those that take over included"


def test_eager_allocs_are_its_storages() -> None:
    graph = described_graph()
    figures = eager_figures(graph)
    assert figures is not None
    snapshot = snapshot_of(graph, "eager")
    assert replay(snapshot)[0] == figures.stack_bytes
    alloc = next(e for e in snapshot["device_traces"][0] if e["action"] == "alloc")
    assert alloc["frames"] == [
        {"name": "aten.mul.Tensor", "filename": "net.py", "line": 3},
        {"name": "until it dies with forward of net.py:3 until it returns", "filename": "", "line": 0},
    ]


def test_eager_segments_are_those_of_the_allocators_model() -> None:
    graph = edit(described_graph(), "notes.eager.storages.bytes", (3 << 20, 30 << 20, 100))
    snapshot = snapshot_of(graph, "eager")
    replay(snapshot)
    allocator = CachingAllocator()
    for row, size in enumerate((3 << 20, 30 << 20, 100)):
        allocator.allocate(row, size)
    sizes = sorted(state.nbytes for state in allocator.segment_states())
    assert sorted(segment["total_size"] for segment in snapshot["segments"]) == sizes
    assert {segment["segment_type"] for segment in snapshot["segments"]} == {"small", "large"}


def test_category_unknown_is_there_for_the_viewer() -> None:
    events = snapshot_of(described_graph(), "planned")["device_traces"][0]
    assert {event.get("category") for event in events} == {None, "unknown", "activation", "scratch", "gradient"}


def test_storages_of_no_bytes_are_left_out() -> None:
    graph = edit(described_graph(), "notes.eager.storages.bytes", (0, 256, 0))
    assert replay(snapshot_of(graph, "eager"))[0] == 256


def test_sizes_of_2_to_the_63_stay_whole() -> None:
    graph = huge_graph()
    plan = plan_of(graph, "inference")
    snapshot = snapshot_of(graph, "planned", plan)
    assert replay(snapshot) == (plan.metrics["bound_bytes.stack"], plan.metrics["peak_bytes.stack"])
    assert torch_tools.trace(snapshot)


def test_hostile_texts_stay_whole_in_frames() -> None:
    graph = hostile_graph()
    snapshot = snapshot_of(graph, "eager")
    frames = [frame for event in snapshot["device_traces"][0] for frame in event["frames"]]
    eager = graph.notes.eager
    assert eager is not None
    assert set(eager.storages.source) <= {frame["filename"] for frame in frames}
    for text in (*eager.storages.maker, *eager.storages.module, *eager.storages.holder):
        assert any(text in frame["name"] for frame in frames)


def test_eager_without_its_table_is_refused() -> None:
    graph = described_graph()
    for missing in (None, edit(graph, "notes.eager", None)):
        with pytest.raises(InvalidConfig, match="--run eager"):
            encode_memory_viz(plan_of(graph), missing, "eager")


@pytest.mark.parametrize("seed", range(4))
def test_what_lives_to_the_end_of_a_mirrored_timeline_alone_is_not_freed(seed: int) -> None:
    graph = mirrored_sample(seed)
    plan = plan_of(graph, preset="train_full")
    snapshot = snapshot_of(graph, "planned", plan)
    assert replay(snapshot)[0] == plan.metrics["bound_bytes.stack"]
    frees = [e["time_us"] for e in snapshot["device_traces"][0] if e["action"] == "free_completed"]
    placed = zip(plan.buffers.death, plan.buffers.arena, plan.buffers.bytes, strict=True)
    stack = [death for death, arena, size in placed if arena > 1 and size]
    assert sorted(frees) == sorted(death for death in stack if death < 2 * len(plan.order))


def test_frames_name_the_newest_buffer_first() -> None:
    graph = described_graph()
    plan = plan_of(graph)
    over = dict(zip(plan.buffers.id, plan.buffers.takes_over, strict=True))
    events = [e for e in snapshot_of(graph, "planned", plan)["device_traces"][0] if len(e["frames"]) > 1]
    assert events
    for event in events:
        ids = [int(frame["name"].split()[1]) for frame in event["frames"]]
        assert [over[buffer] for buffer in ids] == [*ids[1:], ids[-1]]


def test_blocks_of_eager_are_as_large_as_the_allocator_makes_them() -> None:
    blocks = [block for segment in snapshot_of(described_graph(), "eager")["segments"] for block in segment["blocks"]]
    assert [(b["size"], b["requested_size"]) for b in blocks if b["state"] == "active_allocated"] == [(512, 256)]
    assert {block["size"] % 512 for block in blocks} == {0}
