"""The summary of a plan written by hand."""

from dataclasses import replace

import pytest

from tests.unit.cli.graphs import small
from tmmu.cli.output import render
from tmmu.codec.printable import align_columns
from tmmu.ir.plan import Arenas, Placements, Plan, Slots
from tmmu.summary.plan_contents import CallerInput, StatePart
from tmmu.summary.plan_summary import Memory, StackLine, fit, operators, summarize

MIB = 1 << 20


def plan() -> Plan:
    """Of ``small()``, in mode inference: the relu takes over its argument, the sum takes over the second product."""
    return Plan(
        ir_hash=small().ir_hash,
        mode="inference",
        preset="inference",
        token_prefix=b"prefix!!",
        order=(0, 1, 2, 3, 4),
        arenas=Arenas(
            name=("parameters", "state", "activations", "gradients"),
            segment=("text", "data", "stack", "stack"),
            alignment=(256,) * 4,
            page=(0,) * 4,
            capacity=(0, 0, 1 << 20, 0),
            layout=("sequential", "sequential", "packed", "packed"),
            slots=(2, 1, 2, 0),
            peak=(2 * MIB, 4096, 20480, 0),
            bound=(2 * MIB, 4096, 20480, 0),
            proven=(True, True, True, True),
        ),
        slots=Slots(
            arena=(0, 0, 1, 2, 2), slot=(0, 1, 0, 0, 1), address=(1, 2, 3, 4, 5), bytes=(MIB, MIB, 4096, 16384, 4096)
        ),
        buffers=Placements(
            id=(1, 2, 3, 4, 5, 6, 7),
            arena=(0, 0, 1, 2, 2, 2, 2),
            slot=(0, 1, 0, 0, 0, 1, 1),
            offset=(0, MIB, 0, 0, 0, 16384, 16384),
            bytes=(MIB, MIB, 4096, 16384, 16384, 4096, 4096),
            birth=(0, 0, 0, 0, 1, 2, 4),
            death=(5, 5, 5, 2, 3, 5, 5),
            takes_over=(1, 2, 3, 4, 4, 6, 6),
        ),
        metrics={},
    )


def test_peak_counts_a_buffer_in_place_once() -> None:
    peak = summarize(plan(), small(), reserve=0).peaks[0]
    assert (peak.position, peak.op, peak.bytes, peak.live) == (2, "aten.mm", 20480, 2)
    assert [(buffer.id, buffer.bytes, buffer.module, buffer.source, buffer.op) for buffer in peak.buffers] == [
        (5, 16384, "act", "small.py:8", "aten.relu"),
        (6, 4096, "second", "small.py:9", "aten.mm"),
    ]


def test_live_buffers_name_the_last_taker_of_a_place() -> None:
    """At position 1 the relu overwrites its argument: both are live, in one place."""
    short = replace(plan().buffers, death=(5, 5, 5, 2, 2, 5, 5))
    peak = summarize(replace(plan(), buffers=short), small(), reserve=0).peaks[0]
    assert peak.position == 0
    assert [buffer.id for buffer in peak.buffers] == [4]
    later = replace(short, birth=(0, 0, 0, 0, 1, 1, 4))
    peak = summarize(replace(plan(), buffers=later), small(), reserve=0).peaks[0]
    assert (peak.position, [buffer.id for buffer in peak.buffers]) == (1, [5, 6])


def test_takeover_by_a_buffer_of_lower_id_is_one_place() -> None:
    """Buffer 4 takes over 5: ids need not follow time."""
    rows = replace(
        plan().buffers, birth=(0, 0, 0, 1, 0, 2, 4), death=(5, 5, 5, 3, 2, 5, 5), takes_over=(1, 2, 3, 5, 5, 6, 6)
    )
    assert summarize(replace(plan(), buffers=rows), small(), reserve=0).peaks[0].bytes == 20480


def test_listed_buffers_are_limited() -> None:
    peak = summarize(plan(), small(), reserve=0, listed=1).peaks[0]
    assert (peak.live, len(peak.buffers)) == (2, 1)
    assert render.peak_line(peak).endswith("20.0 KiB, the largest 1 of 2 buffers:")


def test_arenas_of_the_stack_have_their_own_peaks_largest_first() -> None:
    moved = replace(plan().buffers, arena=(0, 0, 1, 3, 3, 2, 2))
    peaks = summarize(replace(plan(), buffers=moved), small(), reserve=0).peaks
    assert [(peak.arena, peak.position, peak.bytes) for peak in peaks] == [
        ("gradients", 0, 16384),
        ("activations", 2, 4096),
    ]


def training_plan(*, layout: tuple[str, str] = ("joint", "joint")) -> Plan:
    """The first product and the relu are gradients, above the rest: at position 2 the relu and the sum are live."""
    base = plan()
    rows = replace(base.buffers, arena=(0, 0, 1, 3, 3, 2, 2), offset=(0, MIB, 0, 4096, 4096, 0, 0))
    rows = replace(rows, slot=(0, 1, 0, 0, 0, 0, 0))
    arenas = replace(
        base.arenas,
        layout=("sequential", "sequential", *layout),
        slots=(2, 1, 1, 1),
        peak=(2 * MIB, 4096, 4096, 20480 if layout == ("joint", "joint") else 16384),
        bound=(2 * MIB, 4096, 4096, 16384),
    )
    return replace(base, arenas=arenas, buffers=rows)


def test_shared_slab_counts_once_and_has_one_peak() -> None:
    summary = summarize(training_plan(), small(), reserve=0)
    assert summary.stack == StackLine(peak=20480, bound=20480, proven=True)
    assert summary.memory.stack == 20480
    (peak,) = summary.peaks
    assert (peak.arena, peak.position, peak.bytes, peak.live) == ("stack", 2, 20480, 2)
    assert [buffer.id for buffer in peak.buffers] == [5, 6]
    assert render.peak_line(peak) == "the stack is fullest at position 2 (aten.mm): 20.0 KiB, all 2 buffers:"


def test_bound_of_a_shared_slab_is_what_is_live_at_once_in_it() -> None:
    """The relu dies before the sum is made: the larger of the two, not both."""
    joint = training_plan()
    short = replace(joint, buffers=replace(joint.buffers, death=(5, 5, 5, 2, 2, 5, 5)))
    assert summarize(short, small(), reserve=0).stack.bound == 16384


def test_table_gives_a_shared_slab_one_peak_and_each_arena_what_it_has_live() -> None:
    rows = [line.split() for line in render.arena_table(summarize(training_plan(), small(), reserve=0))]
    assert rows[3:] == [
        ["stack", "20.0", "KiB", "20.0", "KiB", "yes"],
        ["activations", "4.0", "KiB", "1", "50.0", "%"],
        ["gradients", "16.0", "KiB", "1", "50.0", "%"],
    ]


@pytest.mark.parametrize("layout", [("packed", "packed"), ("joint", "packed"), ("packed", "joint")])
def test_separate_slabs_add_up_and_each_has_its_peak(layout: tuple[str, str]) -> None:
    """One joint arena alone is a slab like any other. A stack that loses its proof in one slab has none."""
    separate = training_plan(layout=layout)
    summary = summarize(separate, small(), reserve=0)
    assert (summary.stack.peak, summary.stack.bound, summary.memory.stack) == (20480, 20480, 20480)
    assert [(peak.arena, peak.bytes) for peak in summary.peaks] == [("gradients", 16384), ("activations", 4096)]
    assert [line.split()[-4:-2] for line in render.arena_table(summary)[-2:]] == [["yes", "1"], ["yes", "1"]]
    doubtful = replace(separate, arenas=replace(separate.arenas, proven=(True, True, False, True)))
    assert not summarize(doubtful, small(), reserve=0).stack.proven


def test_memory_adds_up_by_segment_with_the_inputs_beside_it() -> None:
    memory = summarize(plan(), small(), reserve=0).memory
    assert memory == Memory(text=2 * MIB, data=4096, stack=20480, inputs=4096, total=2 * MIB + 4096 + 20480 + 4096)


def test_plan_without_a_graph_has_no_names() -> None:
    summary = summarize(plan(), None, reserve=0)
    assert (summary.model, summary.target, summary.memory.inputs) == ("", "", None)
    assert [(buffer.id, buffer.role, buffer.op) for buffer in summary.peaks[0].buffers] == [
        (5, "activations", ""),
        (6, "activations", ""),
    ]
    assert render.headline(summary) == "plan: inference, preset inference, 5 ops, 7 buffers"


def test_empty_plan_has_no_peak() -> None:
    empty = Placements(id=(), arena=(), slot=(), offset=(), bytes=(), birth=(), death=(), takes_over=())
    nothing = replace(plan(), buffers=empty, order=())
    assert summarize(nothing, None, reserve=0).peaks == ()


@pytest.mark.parametrize(("needed", "fits", "left"), [(8 * 10**9, True, 0), (8 * 10**9 + 1, False, -1)])
def test_device_fits_to_the_byte(needed: int, fits: bool, left: int) -> None:
    assert (fit(8, needed).fits, fit(8, needed).left) == (fits, left)


def test_reserve_counts_against_every_device() -> None:
    summary = summarize(plan(), small(), reserve=24 * 10**9)
    assert [fit.gb for fit in summary.fits if not fit.fits] == [8, 12, 16, 24]
    assert render.fit_line(summary) == (
        "inference on cpu needs 22.4 GiB of device memory (total + 22.4 GiB in reserve): "
        "fits 40 48 80 141 192 GB, not 8 12 16 24 GB (24 GB is 2.0 MiB short)"
    )


def test_need_beyond_every_device_names_the_largest() -> None:
    text = render.fit_line(summarize(plan(), None, reserve=192 * 10**9))
    assert text.startswith("inference needs 178.8 GiB of device memory")
    assert text.endswith("fits no size listed, not 8 12 16 24 40 48 80 141 192 GB (192 GB is 2.0 MiB short)")


def test_operators_come_most_calls_first() -> None:
    rows = operators(small(), plan(), is_known=lambda name: name != "aten.relu")
    assert [(row.operator, row.calls, row.flops, row.known) for row in rows] == [
        ("aten.mm", 2, 4194304, True),
        ("aten.add", 1, 0, True),
        ("aten.copy_", 1, 0, True),
        ("aten.relu", 1, 0, False),
    ]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (-2048, "-2.0 KiB"),
        (1048575, "1.0 MiB"),
        (497759232, "474.7 MiB"),
        (2**64 - 1, "16.0 EiB"),
    ],
)
def test_sizes_are_in_binary_units(count: int, text: str) -> None:
    assert render.size(count) == text


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert align_columns("<>", ("a", "b"), [("long", "1"), ("x", "22")]) == ["a      b", "long   1", "x     22"]


def test_inputs_are_all_of_the_caller() -> None:
    summary = summarize(plan(), small(), reserve=0)
    assert summary.inputs == (CallerInput(name="x", dtype="float32", shape=(4, 256)),)
    assert render.inputs_line(summary) == ["inputs: x float32[4, 256]"]
    assert render.inputs_line(summarize(plan(), None, reserve=0)) == []


def test_few_inputs_are_named_and_the_others_counted() -> None:
    tensor = CallerInput(name="", dtype="int64", shape=())
    summary = replace(summarize(plan(), small(), reserve=0), inputs=(tensor,) * 6)
    assert render.inputs_line(summary) == ["inputs: int64[], int64[], int64[], int64[], and 2 more"]


@pytest.mark.parametrize(
    ("name", "stage", "kind", "text"),
    [
        ("first.weight", "update", "weights", "weights that the step updates"),
        ("optimizer.exp_avg.first.weight", "update", "optimizer", "optimizer"),
        ("cache.0.keys", "forward", "cache", "KV cache"),
        ("norm.running_mean", "forward", "buffers", "buffers that the model updates"),
    ],
)
def test_state_is_listed_by_kind(name: str, stage: str, kind: str, text: str) -> None:
    graph = small()
    names = (*graph.notes.buffers[:3], name, *graph.notes.buffers[4:])
    stages = (*graph.ops.stage[:3], stage, *graph.ops.stage[4:])
    graph = replace(graph, notes=replace(graph.notes, buffers=names), ops=replace(graph.ops, stage=stages))
    summary = summarize(plan(), graph, reserve=0)
    assert summary.state == (StatePart(kind=kind, bytes=4096),)
    assert render.state_line(summary) == [f"data 4.0 KiB = {text} 4.0 KiB"]


def test_parts_of_data_add_up() -> None:
    rows = replace(plan().buffers, arena=(0, 1, 1, 2, 2, 2, 2))
    summary = summarize(replace(plan(), buffers=rows), small(), reserve=0)
    assert sum(part.bytes for part in summary.state) == MIB + 4096
    assert summarize(plan(), None, reserve=0).state == ()


def test_columns_are_wide_enough_for_what_is_escaped() -> None:
    assert align_columns("<>", ("a", "b"), [("\x1b", "1"), ("x", "22")]) == ["a      b", "\\x1b   1", "x     22"]
